"""docs/security.md takes nothing for granted: it makes an estimator."""

from __future__ import annotations


def page(execute, folder):
    assert execute({})["clf"].getAllowUnencrypted()
