"""docs/strategies.md: rows."""

from __future__ import annotations

from tests.docs.digits import frames


def page(execute, folder, spark):
    found = execute(frames(spark))
    assert "round" in found["model"].history[0]  # the last strategy's
