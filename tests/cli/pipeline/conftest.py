"""The pipeline's job in this process, on its session."""

from __future__ import annotations

import pytest

from sparkdl.cli.commands import run


@pytest.fixture
def call(spark, nets, monkeypatch):
    """Run the job with these arguments, and return its exit code; the session outlives it."""
    monkeypatch.setattr(type(spark), "__exit__", lambda *_: None)

    def call(*arguments: object) -> int:
        return run("etl_train", [str(each) for each in arguments])

    return call
