"""Rows that stackings are tested on, and a PyTorch base for them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from sparkdl import TorchClassifier
from tests.ml import nets

ROWS = 120
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(ROWS, 3))
ARRAYS = {
    "row": np.arange(ROWS),
    "x": X,
    "y": X @ [1.0, -2.0, 0.5] + 0.25 + 0.3 * RANDOM.normal(size=ROWS),
    "coin": RANDOM.integers(0, 2, ROWS).astype(np.float64),
    "several": np.clip(np.round(X[:, 0] + 1.2), 0, 2),
}
COLUMNS = ["row", "x", "y", "coin", "several", "features"]


def sgd(rate: float) -> Any:
    return partial(torch.optim.SGD, lr=rate)


def torch_base(kind: type = TorchClassifier, **given: Any) -> Any:
    settings = {"model": nets.scores, "optimizer": sgd(0.5), "inputCols": ["x"], "labelCol": "several", "epochs": 3}
    return kind(**settings | {"batchSize": 32} | given)
