"""Rounds and members that lose executors or the driver end as if nothing had happened; nothing is trained twice."""

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

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]

SPECULATION = {
    "speculation": "true",
    "speculation__interval": "100ms",
    "speculation__quantile": "0.5",
    "speculation__multiplier": "1.5",
    "speculation__minTaskRuntime": "500ms",
    "locality__wait": "200ms",
}
# Two executors of one core; a task takes either, so each trains a member from the start. An executor copies
# its packed rows to the other. By default, Spark may list a new executor as a peer a minute late.
SETTINGS = {"cores__max": "2", "executor__cores": "1", "locality__wait": "0s", "storage__cachedPeersTtl": "100"}


@pytest.fixture(scope="module")
def quiet(two_hosts):
    folder = two_hosts.shared / "quiet"
    found = two_hosts.driver().call(run_rounds, folder).result()
    assert_undisturbed(found, found, folder)
    assert len(calls(folder)) == ROUNDS * PARTS
    return found


# ---- drivers that end ------------------------------------------------------------------------------------------------

DONE = {0, 1, 2, 4, 5}


@pytest.fixture(scope="module")
def killed(two_hosts, quiet):
    """The folder and the faults of rounds whose driver was killed in round 2.

    In round 1 an executor took packed rows, files of its shards and their shuffle with it.
    """
    folder = two_hosts.shared / "killed"
    folder.mkdir()
    faults = [
        Fault(how, shard, number, f"{folder}/mark-{number}", "map")
        for how, shard, number in (("executor", 1, 1), ("hold", 2, 2), ("hold", 1, 4))
    ]
    driver = two_hosts.driver().call(run_rounds, folder, [*map(asdict, faults)])
    driver.until(Path(faults[1].mark).exists, "a shard of round 2", timeout=PATIENCE)
    driver.kill()
    two_hosts.nothing_left()
    assert len(calls(folder, 1, 1)) == 2
    return folder, faults


@pytest.fixture(scope="module")
def stopped(two_hosts, killed):
    """The folder of an ensemble whose driver got SIGTERM, after an executor was lost with member 1."""
    folder = two_hosts.shared / "stopped"
    folder.mkdir()
    # Members 3 and 6 wait, one in each executor: all members before them and between them are finished.
    lost, *held = [
        Fault(how, member, 3, f"{folder}/{how}-{member}", "batch")
        for how, member in (("executor", 1), ("hold", 3), ("hold", 6))
    ]
    driver = two_hosts.driver(**SETTINGS).call(bagged, folder, folder / "run", [*map(asdict, [lost, *held])])
    for fault in held:
        driver.until(Path(fault.mark).exists, f"member {fault.rank}", timeout=PATIENCE)
    driver.until(lambda: finished(folder / "run") == DONE, "the members that are finished")
    assert Path(lost.mark).exists()
    os.kill(driver.pid, signal.SIGTERM)
    assert driver.code() == TERMINATED
    assert "stopped: the run was asked to stop (the driver got SIGTERM)" in driver.output
    assert "ended now" not in driver.output
    two_hosts.nothing_left()
    assert finished(folder / "run") == DONE
    return folder


@pytest.fixture
def next_driver(cluster, killed, stopped):
    """The driver that resumes both; a task that waits runs a second time."""
    return cluster.driver(**SETTINGS | SPECULATION)


def test_rounds_survive_killed_executor_killed_driver_and_speculation(cluster, next_driver, killed, quiet):
    folder, (executor, held, twice) = killed
    # In round 4, shard 1 waits until a speculative task maps it as well; it counts once.
    found = next_driver.call(run_rounds, folder, [*map(asdict, (executor, held, twice))]).result()
    assert found == quiet
    assert len(calls(folder, 0)) == PARTS
    assert len(calls(folder, 2, 2)) >= 2
    assert Path(f"{twice.mark}.go").exists()
    assert not Path(f"{twice.mark}.late").exists()
    assert len(set(calls(folder, 4, 1))) >= 2
    cluster.gang_gone()


def test_ensemble_resumes_after_lost_executor_and_sigterm(cluster, next_driver, stopped):
    # Member 7 waits until a speculative task trains it as well; it counts once.
    twice = Fault("hold", 7, 3, f"{stopped}/twice", "batch")
    found = next_driver.call(bagged, stopped, stopped / "run", [asdict(twice)]).result()
    assert (found["trained"], found["restored"]) == ([3, 6, 7], sorted(DONE))
    assert not Path(f"{twice.mark}.late").exists()
    times = [len(begun(stopped, member)) for member in range(MEMBERS)]
    assert [times[member] for member in (0, 1, 2, 4, 5)] == [1, 2, 1, 1, 1]
    assert len(set(begun(stopped, 7))) == 2
    expected = next_driver.call(bagged, cluster.shared / "whole", None).result()
    assert found["weights"] == expected["weights"]
    assert len(set(expected["weights"])) == MEMBERS
    cluster.gang_gone()


COMING_AND_GOING = {
    "dynamicAllocation__enabled": "true",
    "dynamicAllocation__shuffleTracking__enabled": "true",
    "dynamicAllocation__shuffleTracking__timeout": "4s",
    "dynamicAllocation__cachedExecutorIdleTimeout": "4s",
    "dynamicAllocation__executorIdleTimeout": "4s",
    "dynamicAllocation__maxExecutors": "1",
    "io__encryption__enabled": "true",
}


def test_executors_come_and_go(cluster, quiet):
    """At first there are none; after round 2 all leave, and only the memories stay."""
    folder, driver = cluster.shared / "on-demand", cluster.driver(settled=False, **COMING_AND_GOING)
    try:
        found = driver.call(run_rounds, folder, [], [2], True).result(2 * PATIENCE)
    finally:
        cluster.end_driver()
    assert_undisturbed(found, quiet, folder)
    assert not set(calls(folder, 2)) & set(calls(folder, 3))
