"""Values of Params, as explainParams() shows them."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torchmetrics
from torch import nn

from sparkdl import AllReduce
from sparkdl.ml.shown import shown
from tests.ml import nets


@dataclass(frozen=True)
class Noise:
    """An augmentation with a setting."""

    scale: float = 0.1
    start: Any = nets.column

    def __call__(self, inputs: Any, target: Any, generator: Any) -> Any:
        return inputs, target


class Plain:
    """Has no representation of its own."""

    def method(self) -> None:
        """Something to call."""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("label", "label"),
        ("", "''"),
        (None, "None"),
        (["a", "b"], "['a', 'b']"),
        (("a",), "('a',)"),
        ({"mean": torchmetrics.MeanMetric()}, "{'mean': MeanMetric()}"),
        (nets.column, "column"),
        (nets.Line, "Line"),
        (partial(nets.mlp, 3, 4, outputs=1), "partial(mlp, 3, 4, outputs=1)"),
        (partial(torch.optim.SGD, lr=0.1), "partial(SGD, lr=0.1)"),
        (lambda: None, "<lambda>"),
        (nn.Sequential(nn.ReLU(), nn.Tanh()), "Sequential( (0): ReLU() (1): Tanh() )"),
        (AllReduce(bucket_bytes=64), "AllReduce(reduce=Exact(), bucket_bytes=64)"),
        (Noise(), "Noise(scale=0.1, start=column)"),
        ([Plain()], "[Plain object]"),
        (Plain().method, "Plain.method"),
        (threading.Lock(), "<unlocked _thread.lock object>"),
        ("x" * 300, "x" * 197 + "..."),
    ],
)
def test_a_value_is_shown_on_one_line(value, text):
    assert shown(value) == text
