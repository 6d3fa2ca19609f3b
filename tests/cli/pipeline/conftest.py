"""A pipeline on small rows."""

from __future__ import annotations

import pytest

from tests.cli.pipeline.week import Small, write


@pytest.fixture
def small(tmp_path, job) -> Small:
    for name in ("raw", "new"):
        write(tmp_path / name)
    return Small(tmp_path, job)


@pytest.fixture
def store(tmp_path, monkeypatch) -> str:
    """The URI of a store of MLflow that is not its default; a pipeline with ``register`` logs to it."""
    for name in ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, "true")
    return (tmp_path / "store").as_uri()
