"""Spark on several hosts, or the reason why not."""

from __future__ import annotations

import os

import pytest

from tests.cluster.hosts import missing


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skips where hosts cannot be had; where SPARKDL_REQUIRE_CLUSTER is set it fails instead."""
    reason = missing()
    if reason is not None:
        (pytest.fail if os.environ.get("SPARKDL_REQUIRE_CLUSTER") else pytest.skip)(reason)
