"""Pairs of values with different descriptions."""

from __future__ import annotations

import functools
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from pyspark.ml.linalg import DenseMatrix
from pyspark.ml.param import Param, Params
from torch import nn
from torchmetrics.classification import MulticlassAccuracy


def linear(weight: float) -> nn.Module:
    module = nn.Linear(2, 2)
    nn.init.constant_(module.weight, weight)
    nn.init.zeros_(module.bias)
    return module


@dataclass(frozen=True)
class Step:
    call: Any
    hidden: Any = field(default=0, repr=False)


class Scaled(nn.Module):
    def __init__(self, scale: float = 1, buffer: float = 1, frozen: bool = False) -> None:
        super().__init__()
        self._scale = scale
        self.register_buffer("table", torch.tensor([buffer]), persistent=False)
        self.shift = nn.Parameter(torch.zeros(1), requires_grad=not frozen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self._scale + self.table + self.shift


class Slotted:
    __slots__ = ("_unset", "by")

    def __init__(self, by: Any) -> None:
        self.by = by


class Weighted:
    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __repr__(self) -> str:
        return "Weighted()"

    @cached_property
    def half(self) -> float:
        return self.weight / 2

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


@dataclass
class Later:
    by: float
    table: Any = field(init=False)
    parent: Any = None
    cache: Any = field(init=False, repr=False)


class Holding(Params):
    held: Param[Any] = Param(Params._dummy(), "held", "anything")

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self._set(**given)


def wrapped(add: float) -> Any:
    losses = [lambda x, y: x + 1, lambda x, y: x + 2]
    return functools.wraps(nn.functional.cross_entropy)(losses[int(add)])


NAMES = [f"column {number}" for number in range(9)]  # enough that their order in a set is another in each process
LONG = np.arange(5000.0)


def scope(number: Any, default: Any = 1) -> Any:
    def inner(x: Any, y: Any = default) -> Any:
        return x + y + number

    return inner


def mutual(number: int) -> Any:
    def one(x: int) -> Any:
        return x and other(x - 1)

    def other(x: int) -> Any:
        return x and one(x - number)

    return one, other


# Each gives two values that differ, for 0 and for 1.
VARIANTS = [
    lambda at: [lambda x: x + 1, lambda x: x + 2][at],
    lambda at: [lambda x: x in {"a", "b"}, lambda x: x in {"a", "c"}][at],
    lambda at: [lambda x: torch.relu(x) + 1, lambda x: torch.tanh(x) + 1][at],
    lambda at: [lambda x, *, y=1: x + y, lambda x, *, y=2: x + y][at],
    scope,
    lambda at: scope(0, at),
    lambda at: partial(map, scope(at)),
    lambda at: cache(scope(at)),
    lambda at: scope([scope(at)]),
    lambda at: Step(scope(at)),
    lambda at: Step(1, at),
    lambda at: nn.CrossEntropyLoss(torch.tensor([1.0, 2.0 + at])),
    linear,
    lambda at: nn.Sequential(linear(0.0), Scaled(at)),
    lambda at: LONG + at * (LONG == 2000),
    lambda at: LONG.reshape([(50, 100), (100, 50)][at]),
    lambda at: np.array([at, None], dtype=object),
    lambda at: DenseMatrix(50, 50, [float(at * (number == 1000)) for number in range(2500)]),
    lambda at: nn.Sequential(Scaled(buffer=at)),
    lambda at: Scaled(frozen=bool(at)),
    lambda at: {*NAMES[at:]},
    lambda at: scope([{"a": frozenset(NAMES[at:])}]),
    lambda at: Step({*NAMES}, OrderedDict(a={*NAMES[at:]})),
    lambda at: SimpleNamespace(skip={*NAMES}, call=scope(at)),
    lambda at: {scope(at), scope(2), scope(3), *NAMES},
    lambda at: {"a": [np.array([scope(at), {*NAMES}], dtype=object)]},
    wrapped,
    lambda at: torch.no_grad()(scope(at)),
    lambda at: Later(at, parent={*NAMES}),
    lambda at: {scope(at): 1},
    lambda at: {(scope(at), "a"): scope(0)},
    lambda at: [" ", "  "][at],
    Slotted,
    lambda at: Slotted(Slotted(scope(at))),
    lambda at: Weighted(at).loss,
    Weighted,
    lambda at: [b"a  b", b"a b"][at],
    lambda at: MulticlassAccuracy(3, top_k=at + 1),
    lambda at: {*mutual(at)},
    lambda at: dict.fromkeys([*NAMES, at]).get,
    lambda at: Holding(held=[("a", Holding(held=at))]),
    lambda at: partial(map, Holding(held=at)),
    lambda at: scope({"a": [Holding(held={*NAMES[at:]})]}),
]
