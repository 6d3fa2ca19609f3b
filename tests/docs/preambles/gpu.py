"""docs/gpu.md takes nothing for granted: it makes an estimator."""

from __future__ import annotations


def page(execute, folder):
    clf = execute({})["clf"]
    assert (clf.getDevice(), clf.getPrecision()) == ("cuda", "bf16")
