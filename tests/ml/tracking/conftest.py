"""What tests with MLflow share: a store of local files, and no word to anybody."""

from __future__ import annotations

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


@pytest.fixture
def store(tmp_path: Path) -> str:
    """The URI of a store of its own; the one that MLflow takes by itself is another."""
    return (tmp_path / "store").as_uri()
