"""Rounds and members that lose executors or the driver end as if nothing had happened; nothing is trained twice."""

from __future__ import annotations

import os
import signal
from dataclasses import asdict
from pathlib import Path

import pytest

from sparkdl.cluster.shutdown import TERMINATED
from tests.faults import Fault
from tests.faults.rounds import PARTS, ROUNDS, assert_undisturbed, calls
from tests.hosts.drivers import MEMBERS, bagged, begun, finished, run_rounds
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


# ---- ensembles -------------------------------------------------------------------------------------------------------

# Two executors of one core; a task takes either, so each trains a member from the start. An executor copies
# its packed rows to the other. By default, Spark may list a new executor as a peer a minute late.
SETTINGS = {"cores__max": "2", "executor__cores": "1", "locality__wait": "0s", "storage__cachedPeersTtl": "100"}


def test_ensemble_resumes_after_lost_executor_and_sigterm(cluster, tmp_path):
    run, done = tmp_path / "run", {0, 1, 2, 4, 5}
    # Members 3 and 6 wait, one in each executor: all members before them and between them are finished.
    lost, *held = [
        Fault(how, member, 3, f"{tmp_path}/{how}-{member}", "batch")
        for how, member in (("executor", 1), ("hold", 3), ("hold", 6))
    ]
    driver = cluster.driver(**SETTINGS).call(bagged, tmp_path, run, [*map(asdict, [lost, *held])])
    for fault in held:
        driver.until(Path(fault.mark).exists, f"member {fault.rank}", timeout=PATIENCE)
    driver.until(lambda: finished(run) == done, "the members that are finished")
    assert Path(lost.mark).exists()
    os.kill(driver.pid, signal.SIGTERM)
    assert driver.code() == TERMINATED
    assert "stopped: the run was asked to stop (the driver got SIGTERM)" in driver.output
    assert "ended now" not in driver.output
    cluster.nothing_left()
    assert finished(run) == done

    # Member 7 waits until a speculative task trains it as well; it counts once.
    twice = Fault("hold", 7, 3, f"{tmp_path}/twice", "batch")
    driver = cluster.driver(**SETTINGS | SPECULATION)
    found = driver.call(bagged, tmp_path, run, [asdict(twice)]).result()
    assert (found["trained"], found["restored"]) == ([3, 6, 7], sorted(done))
    assert not Path(f"{twice.mark}.late").exists()
    times = [len(begun(tmp_path, member)) for member in range(MEMBERS)]
    assert [times[member] for member in (0, 1, 2, 4, 5)] == [1, 2, 1, 1, 1]
    assert len(set(begun(tmp_path, 7))) == 2
    quiet = driver.call(bagged, tmp_path / "quiet", None).result()
    assert found["weights"] == quiet["weights"]
    assert len(set(quiet["weights"])) == MEMBERS
    cluster.gang_gone()
