"""Clusters that all tests of training share, since processes take seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparkdl.cluster.local import LocalCluster


@pytest.fixture(scope="package")
def three() -> Iterator[LocalCluster]:
    with LocalCluster(3) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def four() -> Iterator[LocalCluster]:
    with LocalCluster(4) as cluster:
        yield cluster
