"""A store of local files for MLflow, without telemetry; failures of trackers are errors."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def _alone() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("DO_NOT_TRACK", "true")
        yield


@pytest.fixture(autouse=True)
def _no_tracker_fails() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* failed: ")
        yield


@pytest.fixture
def store(tmp_path: Path) -> str:
    """The URI of a store that is not MLflow's default."""
    return (tmp_path / "store").as_uri()
