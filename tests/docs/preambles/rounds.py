"""docs/rounds.md: rows, a model, and torch."""

from __future__ import annotations

from functools import partial

import torch

from tests.docs.digits import Net, frames


def page(execute, folder, spark):
    found = execute({"Net": Net, "partial": partial, "torch": torch, **frames(spark)})
    assert [row["round"] for row in found["model"].history] == [1, 2]
    assert (folder / "runs/digits/checkpoints").is_dir()
