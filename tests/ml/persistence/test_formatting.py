"""Values of Params on one line, as ``explainParams()`` prints them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torchmetrics
from torch import nn

from sparkdl import AllReduce
from sparkdl.ml.persistence.formatting import format_full_value, format_value
from tests.ml import nets


class Plain:
    def method(self) -> None: ...


class Pair(NamedTuple):
    one: Any
    other: Any = None


@dataclass
class Filled:
    """One of its fields is deleted."""

    one: Any
    gone: Any = field(default_factory=list)

    def __post_init__(self) -> None:
        del self.gone


ITSELF: list[Any] = [1]
ITSELF.append(ITSELF)


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
        (lambda: None, "<lambda>"),
        (nn.Sequential(nn.ReLU(), nn.Tanh()), "Sequential( (0): ReLU() (1): Tanh() )"),
        (AllReduce(bucket_bytes=64), "AllReduce(reduce=Exact(), bucket_bytes=64)"),
        ([Plain()], "[Plain object]"),
        (Plain().method, "Plain.method"),
        ({"b", "a"}, "{'a', 'b'}"),
        (set(), "set()"),
        ([frozenset({2, 1})], "[frozenset({1, 2})]"),
        (OrderedDict(a={"c", "b"}), "OrderedDict({'a': {'b', 'c'}})"),
        (np.array([{"b", "a"}, None], dtype=object), "array([{'a', 'b'}, None], dtype=object)"),
        (Pair({"b", "a"}), "Pair(one={'a', 'b'}, other=None)"),
        (SimpleNamespace(call=nets.column), "SimpleNamespace(call=column)"),
        (torch.Size([2, 3]), "torch.Size([2, 3])"),
        (Filled(1), "Filled(one=1)"),
        (Filled(ITSELF), "Filled(one=[1, ...])"),
        (threading.Lock(), "<unlocked _thread.lock object>"),
        ("x" * 300, "x" * 197 + "..."),
    ],
)
def test_value_fits_on_one_line(value, text):
    assert format_value(value) == text


def test_override_formats_nested_values():
    text = format_full_value([Plain(), {"a": Plain()}], lambda each: "plain" if isinstance(each, Plain) else None)
    assert text == "[plain, {'a': plain}]"
