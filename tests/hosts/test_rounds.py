"""Rounds that lose executors or the driver end as if nothing had happened."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from tests.faults import Fault
from tests.faults.rounds import PARTS, ROUNDS, assert_undisturbed, calls
from tests.hosts.drivers import run_rounds
from tests.hosts.driving import PATIENCE

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(400)]

SPECULATION = {
    "speculation": "true",
    "speculation__interval": "100ms",
    "speculation__quantile": "0.5",
    "speculation__multiplier": "1.5",
    "speculation__minTaskRuntime": "500ms",
    "locality__wait": "200ms",
}
COMING_AND_GOING = {
    "dynamicAllocation__enabled": "true",
    "dynamicAllocation__shuffleTracking__enabled": "true",
    "dynamicAllocation__shuffleTracking__timeout": "4s",
    "dynamicAllocation__cachedExecutorIdleTimeout": "4s",
    "dynamicAllocation__executorIdleTimeout": "4s",
    "dynamicAllocation__maxExecutors": "2",
}


@pytest.fixture(scope="module")
def quiet(two_hosts):
    folder = two_hosts.shared / "quiet"
    found = two_hosts.driver().call(run_rounds, folder).result()
    assert_undisturbed(found, found, folder)
    assert len(calls(folder)) == ROUNDS * PARTS
    return found


def test_rounds_survive_killed_executor_killed_driver_and_speculation(cluster, tmp_path, quiet):
    """An executor takes packed rows, files of its shards and their shuffle with it."""
    executor, held, twice = [
        Fault(how, shard, number, f"{tmp_path}/mark-{number}", "map")
        for how, shard, number in (("executor", 1, 1), ("hold", 2, 2), ("hold", 1, 4))
    ]
    given = [*map(asdict, (executor, held, twice))]
    driver = cluster.driver().call(run_rounds, tmp_path, given)
    driver.until(Path(held.mark).exists, "a shard of round 2", timeout=PATIENCE)
    driver.kill()
    cluster.nothing_left()
    assert len(calls(tmp_path, 1, 1)) == 2
    # In round 4, shard 1 waits until a speculative task maps it as well; it counts once.
    found = cluster.driver(**SPECULATION).call(run_rounds, tmp_path, given).result()
    assert found == quiet
    assert len(calls(tmp_path, 0)) == PARTS
    assert len(calls(tmp_path, 2, 2)) >= 2
    assert Path(f"{twice.mark}.go").exists()
    assert not Path(f"{twice.mark}.late").exists()
    assert len(set(calls(tmp_path, 4, 1))) >= 2
    cluster.gang_gone()


def test_executors_come_and_go(cluster, tmp_path, quiet):
    """At first there are none; after round 2 all leave, and only the memories stay."""
    driver = cluster.driver(settled=False, **COMING_AND_GOING)
    try:
        found = driver.call(run_rounds, tmp_path, [], [2]).result(2 * PATIENCE)
    finally:
        cluster.end_driver()
    assert_undisturbed(found, quiet, tmp_path)
    assert not set(calls(tmp_path, 2)) & set(calls(tmp_path, 3))
