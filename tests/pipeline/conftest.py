"""The pipeline's job in this process, on its session."""

from __future__ import annotations

import pytest


@pytest.fixture
def call(spark, jobs, monkeypatch):
    """Run the job with these arguments, and return its exit code; the session outlives it."""
    monkeypatch.setattr(type(spark), "__exit__", lambda *_: None)

    def call(*arguments: object) -> int:
        return jobs.command.main(jobs.etl_train.etl_train, [str(each) for each in arguments])

    return call
