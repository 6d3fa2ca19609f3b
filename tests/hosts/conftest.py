"""One Spark cluster on several hosts, shared by all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from benchmarks.hosts import Hosts, missing
from tests.hosts.standalone import Standalone


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skips if this machine cannot have hosts; with SPARKDL_REQUIRE_CLUSTER it fails instead."""
    reason = missing()
    if reason is not None:
        (pytest.fail if os.environ.get("SPARKDL_REQUIRE_CLUSTER") else pytest.skip)(reason)


@pytest.fixture(scope="package")
def two_hosts(namespaces: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A standalone cluster: the driver's host, and two with a worker of two cores each."""
    folder = tmp_path_factory.mktemp("cluster") / "hosts"
    with Hosts(folder, ("head", "one", "two")) as hosts, Standalone(hosts) as cluster:
        yield cluster


@pytest.fixture
def cluster(two_hosts: Standalone) -> Standalone:
    """The same, repaired."""
    two_hosts.heal()
    return two_hosts
