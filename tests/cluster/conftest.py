"""A gang of two processes that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparkdl.cluster.local import LocalCluster


@pytest.fixture(scope="package")
def pair() -> Iterator[LocalCluster]:
    with LocalCluster(2, timeout=20.0) as cluster:
        yield cluster
