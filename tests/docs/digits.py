"""The rows that pages take for granted: scikit-learn's handwritten digits, a few hundred of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 400


class Net(nn.Module):
    """What pages call their own model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, features: Tensor) -> Tensor:
        return self.layer(features)


def table(first: int = 0, rows: int = ROWS, *, pixels: int = 64) -> pa.Table:
    """Digits from ``first`` on, each image filled up with zeros to so many pixels."""
    images, labels = load_digits(return_X_y=True)
    chosen = slice(first, first + rows)
    wide = np.zeros((rows, pixels), np.float32)
    wide[:, : images.shape[1]] = images[chosen] / 16
    return pa.table(
        {
            "features": pa.array(list(wide), pa.list_(pa.float32())),
            "label": pa.array(labels[chosen], pa.int64()),
            "held_out": pa.array(np.arange(rows) % 5 == 0),
        }
    )


def frames(spark: SparkSession, *, pixels: int = 64) -> dict[str, DataFrame]:
    """``train`` and ``test``."""
    return {
        "train": spark.createDataFrame(table(pixels=pixels)),
        "test": spark.createDataFrame(table(ROWS, 100, pixels=pixels)),
    }


def seeded() -> None:
    """Torch's random numbers as they are at a program's start."""
    torch.manual_seed(0)
