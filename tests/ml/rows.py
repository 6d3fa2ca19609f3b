"""Rows for fits on Spark, and estimators for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from sparkdl import TorchClassifier, TorchRegressor
from sparkdl.rounds import is_algorithm
from tests.ml import nets

ROWS = 120
RANDOM = np.random.default_rng(6)
X = RANDOM.normal(size=(ROWS, 3))
ARRAYS = {
    "row": np.arange(ROWS),
    "x": X,
    "y": X @ [1.0, -2.0, 0.5] + 0.25 + 0.1 * RANDOM.normal(size=ROWS),
    "label": (X @ [1.0, 1.0, -1.0] + RANDOM.normal(size=ROWS) > 0).astype(np.float64),
    "weight": RANDOM.integers(0, 4, ROWS) / 2,
    "valid": np.arange(ROWS) % 4 == 0,
    "owner": np.arange(ROWS) % 7,
}


@dataclass(frozen=True)
class Steps:
    """A callback that appends the steps of all attempts to a file."""

    path: str
    every_rank = False

    def on_step(self, run: Any) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{run.clock.step}\n")


ON_ROWS = {"inputCols": ["x"], "idCol": "row", "numWorkers": 2}


def on_rows(values: dict[str, Any]) -> dict[str, Any]:
    """The Params of a short fit on the rows; algorithms of rounds have their own epochs."""
    return ON_ROWS | ({} if is_algorithm(values.get("strategy")) else {"epochs": 1})


def classifier(**values: Any) -> TorchClassifier:
    network = {"model": nets.scores, "optimizer": partial(torch.optim.SGD, lr=0.2)}
    return TorchClassifier(**on_rows(values) | network | values)


def regressor(**values: Any) -> TorchRegressor:
    return TorchRegressor(**on_rows(values) | {"model": nets.column, "labelCol": "y"} | values)
