"""The model of the benchmarks, the same on both sides."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import pairwise

import torch
from torch import nn


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers of these widths, from inputs to outputs, with ReLU between."""
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


small = partial(mlp, 28, 64, 64, 1)  # 6 081 parameters: the time around the model counts


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of the benchmarks, the same on both sides."""
    return torch.optim.Adam(parameters, lr=1e-3)
