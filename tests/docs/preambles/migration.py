"""docs/migration.md: rows, also as Parquet where every host sees them."""

from __future__ import annotations

from functools import partial

import pyarrow.parquet
import torch
from torch import nn

from tests.docs.digits import frames, table


def page(execute, folder, spark):
    (folder / "data").mkdir()
    pyarrow.parquet.write_table(table(), folder / "data/digits")
    found = execute({"spark": spark, "partial": partial, "torch": torch, "nn": nn, **frames(spark)})
    assert found["weights"]["weight"].shape == (10, 64)
    assert "valid_loss" in found["model"].history[0]
