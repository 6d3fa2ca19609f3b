"""The size of batches follows from a byte budget."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparkdl.ml.inference.batch_size import BUDGET, batch_rows, batches
from sparkdl.ml.inference.model_cache import CachedModel
from sparkdl.ml.inference.scorer import score


@pytest.mark.parametrize(
    ("rows", "most", "sizes"),
    [(1100, 1000, [550, 550]), (7, 3, [3, 2, 2]), (6, 3, [3, 3]), (1, 512, [1]), (0, 512, []), (3, 1, [1, 1, 1])],
)
def test_batches_are_few_and_equal(rows, most, sizes):
    pieces = list(batches(rows, most))
    assert [piece.start for piece in pieces] == [0, *(piece.stop for piece in pieces)][:-1]
    assert [piece.stop - piece.start for piece in pieces] == sizes


def test_largest_tensor_bounds_the_rows():
    wide = nn.Sequential(nn.Linear(1, 1000), nn.ReLU(), nn.Linear(1000, 1))
    narrow, x = nn.Linear(1, 1), torch.zeros(100, 1)
    assert batch_rows(lambda rows: wide(x[rows]), (x,), budget=400_000) == 100
    assert batch_rows(lambda rows: narrow(x[rows]), (x,), budget=400) == 100
    assert batch_rows(lambda rows: x[rows] + 1, (x,), budget=1) == 1


def test_model_is_measured_once():
    sizes = []

    class Wide(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sizes.append(len(x))
            return x.expand(len(x), 1 << 16).sum(1)  # 256 KiB a row

    loaded, x = CachedModel(Wide()), torch.arange(70.0).unsqueeze(1)
    for _ in range(2):
        assert torch.equal(score(loaded, (x,)), torch.arange(70.0) * (1 << 16))
    assert loaded.rows == BUDGET // (1 << 18) == 32
    assert sizes == [8, 24, 23, 23, 24, 23, 23]
