"""One Spark cluster on several hosts, shared by all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hosts import Hosts, missing
from tests.hosts import drivers
from tests.hosts.driving import PATIENCE
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


COMING_AND_GOING = {
    "dynamicAllocation__enabled": "true",
    "dynamicAllocation__shuffleTracking__enabled": "true",
    "dynamicAllocation__shuffleTracking__timeout": "4s",
    "dynamicAllocation__cachedExecutorIdleTimeout": "4s",
    "dynamicAllocation__executorIdleTimeout": "4s",
    "dynamicAllocation__maxExecutors": "1",
    "io__encryption__enabled": "true",
}


@dataclass(frozen=True)
class OnDemand:
    """What a driver whose executors come and go has done; at first there are none."""

    folder: Path
    rounds: dict[str, Any]  # after round 2 all executors leave
    doctor: dict[str, Any]
    accepted: dict[str, Any]  # by the doctor, unencrypted


@pytest.fixture(scope="package")
def on_demand(two_hosts: Standalone) -> OnDemand:
    """Rounds, and the doctor, under dynamic allocation and encryption of files."""
    two_hosts.heal()
    folder = two_hosts.shared / "on-demand"
    driver = two_hosts.driver(settled=False, **COMING_AND_GOING)
    try:
        rounds = driver.call(drivers.run_rounds, folder, [], [2], True).result(2 * PATIENCE)
        found = driver.call(drivers.doctor).result()
        accepted = driver.call(drivers.doctor, "--allow_unencrypted", "true").result()
    finally:
        two_hosts.end_driver()
    return OnDemand(folder, rounds, found, accepted)
