"""docs/gpu.md: the imports of its code."""

from __future__ import annotations

from functools import partial

from torch import nn

from sparkdl import TorchClassifier


def page(execute, folder):
    clf = execute({"TorchClassifier": TorchClassifier, "partial": partial, "nn": nn})["clf"]
    assert (clf.getDevice(), clf.getPrecision()) == ("cuda", "bf16")
