"""Cuts of a sequence of layers into stages: the contiguous cuts with the smallest slowest stage.

With ``t_l`` the seconds and ``m_l`` the bytes of layer ``l``, and cuts ``0 = c_0 < c_1 < ... < c_p = L``, minimize

    max_k sum_{l = c_(k-1)}^{c_k - 1} t_l        such that    sum_{l = c_(k-1)}^{c_k - 1} m_l <= max_bytes.

The dynamic program takes the best cuts of the first ``l`` layers into ``k`` stages, for each ``k`` and ``l``. It is the
linear partition problem of S. Skiena, The Algorithm Design Manual, section 10.7.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from itertools import accumulate
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.errors import InvalidInput
from sparkdl.training.rng import forked

_REPEATS = 3  # of a layer, when it is timed


def best_cuts(
    seconds: Sequence[float],
    sizes: Sequence[int],
    stages: int,
    max_bytes: int | None = None,
    trained: Sequence[bool] | None = None,
) -> tuple[int, ...]:
    """The first layer of each stage; of equally good cuts, the one with the earliest layers.

    Args:
        seconds: of each layer.
        sizes: bytes of each layer.
        stages: number of stages, each with at least one layer.
        max_bytes: the most bytes of a stage; default: any.
        trained: which layers have trained parameters; each stage needs one of them. Default: all.

    Raises:
        InvalidInput: there are fewer layers than stages, or no cuts have stages of at most ``max_bytes``.
    """
    layers = len(seconds)
    if layers < stages:
        raise InvalidInput(f"the model has {layers} layers, and {stages} stages need one each; set fewer stages.")
    time, size = [0.0, *accumulate(seconds)], [0, *accumulate(sizes)]
    count = [0, *accumulate(trained or [True] * layers)]
    best: list[tuple[float, tuple[int, ...]]] = [(0.0 if end == 0 else inf, ()) for end in range(layers + 1)]
    for _ in range(stages):
        best = [
            min(
                (
                    (max(best[first][0], time[end] - time[first]), (*best[first][1], first))
                    for first in range(end)
                    if count[end] > count[first] and (max_bytes is None or size[end] - size[first] <= max_bytes)
                ),
                default=(inf, ()),
            )
            for end in range(layers + 1)
        ]
    slowest, cuts = best[-1]
    if slowest == inf:
        raise InvalidInput(
            f"no {stages} stages with trained parameters have at most max_bytes={max_bytes} bytes: the layers have "
            f"{[*sizes]} bytes. Set other stages, or a larger max_bytes."
        )
    return cuts


def layer_seconds(layers: Sequence[nn.Module], inputs: Sequence[Tensor]) -> list[float]:
    """Seconds of a forward and a backward pass of each layer on some rows, the fastest of three.

    Args:
        layers: they run one after the other, and stay as they are; their parameters may be on the device ``meta``.
        inputs: of the first layer, ``[rows, ...]`` each.
    """
    seconds, values = [], [*inputs]
    for layer in layers:
        timed, taken, output = _with_values(layer, values[0].device), list[float](), values[0]
        values = [value.detach().requires_grad_(value.is_floating_point()) for value in values]
        for _ in range(_REPEATS):
            start = time.perf_counter()
            with forked(values[0].device):
                output = timed(*(value.clone() for value in values))  # a layer may work in place
            if not isinstance(output, Tensor):
                raise InvalidInput(f"a layer, {type(layer).__name__}, returned no tensor; set split for such models.")
            if output.requires_grad:
                torch.autograd.backward(output, torch.ones_like(output))
            taken.append(time.perf_counter() - start)
        seconds.append(min(taken))
        values = [output]
    return seconds


def _with_values(layer: nn.Module, device: torch.device) -> nn.Module:
    """A copy of a layer, whose parameters have small random values."""
    memo: dict[int, Any] = {
        id(value): nn.Parameter(torch.rand(value.shape, dtype=value.dtype, device=device) / 100, value.requires_grad)
        for value in layer.parameters()
    }
    return copy.deepcopy(layer, memo)
