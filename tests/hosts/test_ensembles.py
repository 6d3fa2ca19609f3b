"""Ensembles of which executors or the driver go: no finished member is trained again, and the bits are the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sparkdl.cluster.shutdown import TERMINATED
from tests.faults import Fault
from tests.faults.rounds import DRIVER
from tests.hosts import ensemble_drivers as drivers
from tests.hosts.driving import PATIENCE, Driver
from tests.hosts.ensemble_drivers import MEMBERS, ROUNDS, begun, finished, same, times
from tests.hosts.hosts import LONG
from tests.hosts.standalone import Standalone
from tests.hosts.test_rounds import COMING_AND_GOING, SPECULATION

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(400)]

# Two executors of one core; a task takes whichever is free, so that each of them has a member from the beginning on. An
# executor asks for others, to which it copies what it has packed, each time: by default it may take a minute to know
# of one that is new, as here after each test.
SETTINGS = {"cores__max": "2", "executor__cores": "1", "locality__wait": "0s", "storage__cachedPeersTtl": "100"}
ALL = list(range(MEMBERS))


@pytest.fixture(scope="module")
def quiet(two_hosts: Standalone) -> Any:
    """What the bagging comes to when nothing happens."""
    folder = two_hosts.shared / "quiet-bagged"
    found = bag(two_hosts.driver(**SETTINGS), folder).result()
    assert times(folder) == [1] * MEMBERS
    assert finished(folder / "run") == set(ALL)
    assert found["report"] == {"trained": ALL, "restored": []}
    assert len(set(found["members"])) == MEMBERS
    return found


@pytest.fixture(scope="module")
def quiet_boosting(two_hosts: Standalone) -> Any:
    """What the boosting of trees comes to when nothing happens."""
    folder = two_hosts.shared / "quiet-boosted"
    found = boost(two_hosts.driver(**SETTINGS), folder).result()
    assert found["report"] == {"trained": list(range(ROUNDS)), "restored": []}
    assert not found["warnings"]
    return found


def bag(driver: Driver, folder: Path, faults: Sequence[Fault] = (), *more: Any, kept: bool = True) -> Driver:
    """Begin the bagging, or go on with it."""
    folder.mkdir(parents=True, exist_ok=True)
    return driver.call(drivers.bagged, folder, folder / "run" if kept else None, list(map(asdict, faults)), *more)


def boost(driver: Driver, folder: Path, faults: Sequence[Fault] = (), *more: Any) -> Driver:
    """Begin the boosting, or go on with it."""
    folder.mkdir(parents=True, exist_ok=True)
    return driver.call(drivers.boosted, folder, folder / "run", list(map(asdict, faults)), *more)


def reached(driver: Driver, *faults: Fault) -> None:
    """Wait until some faults have happened."""
    for fault in faults:
        driver.until(Path(fault.mark).exists, f"the {fault.phase} {fault.step} of {fault.rank}", timeout=PATIENCE)


# ---- members in tasks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "nowhere"])
def test_an_executor_is_killed_while_it_trains_a_member(cluster, tmp_path, quiet, kept):
    """With it go its packed rows, what they were shuffled from, and what had come of members that were not kept."""
    fault = Fault("executor", 5, 3, f"{tmp_path}/mark", "batch")
    found = bag(cluster.driver(**SETTINGS), tmp_path, [fault], kept=kept).result()
    assert Path(fault.mark).exists()
    assert same(found, quiet)
    calls = begun(tmp_path)
    first = next(place for place, call in enumerate(calls) if call.member == 5)
    lost = {call.member for call in calls[:first] if call.executor == calls[first].executor}
    assert lost  # members whose results were on its disk
    assert times(tmp_path) == [1 + (member == 5 or (not kept and member in lost)) for member in ALL]
    assert found["report"] == {"trained": ALL, "restored": []}
    cluster.gang_gone()


HELD = [(3, 2), (6, 4)]
"""Members that wait at a batch, one for each executor: when both do, all before them and between them are finished."""

DONE = [0, 1, 2, 4, 5]


def held(folder: Path) -> list[Fault]:
    return [Fault("hold", member, batch, f"{folder}/held-{member}", "batch") for member, batch in HELD]


def test_the_same_command_goes_on_when_the_driver_was_killed(cluster, tmp_path, quiet):
    """While members train, and again when all have ended and the fit has not."""
    members, end = held(tmp_path), Fault("hold", DRIVER, 0, f"{tmp_path}/end", "model")
    driver = bag(cluster.driver(**SETTINGS), tmp_path, [*members, end])
    reached(driver, *members)
    driver.until(lambda: finished(tmp_path / "run") == set(DONE), "the members that are finished")
    driver.kill()
    cluster.nothing_left()

    driver = bag(cluster.driver(**SETTINGS), tmp_path, [end])
    reached(driver, end)
    driver.kill()
    cluster.nothing_left()
    missing = [member for member in ALL if member not in DONE]
    assert times(tmp_path) == [1 + (member in (3, 6)) for member in ALL]
    assert finished(tmp_path / "run") == set(ALL)

    found = bag(cluster.driver(**SETTINGS), tmp_path).result()
    assert same(found, quiet)
    assert found["report"] == {"trained": [], "restored": ALL}
    assert sum(times(tmp_path)) == MEMBERS + 2
    assert missing == [3, 6, 7]
    assert {path.name for path in (tmp_path / "run/members").iterdir()} == {f"member-{each:05d}" for each in ALL}


def test_a_driver_that_is_sent_sigterm_ends_in_time_and_the_same_goes_on(cluster, tmp_path, quiet):
    """What is finished by then is kept; it goes on in a session that speculates."""
    members, run = held(tmp_path), tmp_path / "run"
    given = [*map(asdict, members)]
    driver = cluster.driver(**SETTINGS).call(drivers.bagged_until_told, tmp_path, run, given)
    reached(driver, *members)
    driver.until(lambda: finished(run) == set(DONE), "the members that are finished")
    os.kill(driver.pid, signal.SIGTERM)
    assert driver.code(LONG) == TERMINATED
    assert "stopped: the run was asked to stop (the driver got SIGTERM)" in driver.output
    assert "ended now" not in driver.output
    cluster.nothing_left()
    assert finished(run) == set(DONE)

    found = bag(cluster.driver(**SETTINGS | SPECULATION), tmp_path).result()
    assert same(found, quiet)
    assert found["report"] == {"trained": [3, 6, 7], "restored": DONE}


def test_slow_members_are_trained_twice_and_are_there_once(cluster, tmp_path, quiet):
    """A member waits until somebody else trains it as well: nobody would, but for speculation."""
    fault = Fault("hold", 2, 3, f"{tmp_path}/held", "batch")
    found = bag(cluster.driver(**SETTINGS | SPECULATION), tmp_path, [fault]).result()
    assert same(found, quiet)
    assert found["report"] == {"trained": ALL, "restored": []}
    assert Path(f"{fault.mark}.go").exists()
    assert not Path(f"{fault.mark}.late").exists()
    assert len({call.executor for call in begun(tmp_path) if call.member == 2}) == 2
    cluster.gang_gone()


def test_executors_come_and_go(cluster, tmp_path, quiet):
    """There are none in the beginning; when all members are trained they leave, and with them what they have."""
    driver = cluster.driver(settled=False, **SETTINGS | COMING_AND_GOING)
    try:
        found = bag(driver, tmp_path, [], MEMBERS, True).result(2 * PATIENCE)
    finally:
        cluster.end_driver()
    assert same(found, quiet)
    assert times(tmp_path) == [1] * MEMBERS


# ---- boosting --------------------------------------------------------------------------------------------------------


def test_an_executor_is_killed_between_two_rounds_of_boosting(cluster, tmp_path, quiet_boosting):
    """With it go rows and their weights that Spark has no way to compute again."""
    fault = Fault("hold", DRIVER, 2, f"{tmp_path}/mark", "fit")
    driver = boost(cluster.driver(**SETTINGS), tmp_path, [fault])
    reached(driver, fault)
    cluster.kill_executor(cluster.workers[0])
    Path(f"{fault.mark}.go").touch()
    found = driver.result()
    assert same(found, quiet_boosting)
    assert any("are computed anew" in each for each in found["warnings"])
    assert found["report"] == {"trained": list(range(ROUNDS)), "restored": []}


def test_boosting_goes_on_when_the_driver_was_killed(cluster, tmp_path, quiet_boosting):
    fault = Fault("hold", DRIVER, 2, f"{tmp_path}/mark", "fit")
    driver = boost(cluster.driver(**SETTINGS), tmp_path, [fault])
    reached(driver, fault)
    assert finished(tmp_path / "run") == {0, 1}
    driver.kill()
    cluster.nothing_left()
    found = boost(cluster.driver(**SETTINGS), tmp_path).result()
    assert same(found, quiet_boosting)
    assert found["report"] == {"trained": [2, 3], "restored": [0, 1]}


def test_an_executor_is_killed_while_it_boosts_a_network(cluster, tmp_path):
    fault = Fault("executor", 2, 3, f"{tmp_path}/mark", "batch")
    expected = boost(cluster.driver(**SETTINGS), tmp_path / "quiet", [], True).result()
    found = boost(cluster.driver(**SETTINGS), tmp_path / "killed", [fault], True).result()
    assert Path(fault.mark).exists()
    assert same(found, expected)
    assert times(tmp_path / "quiet", ROUNDS) == [1] * ROUNDS
    assert times(tmp_path / "killed", ROUNDS) == [1, 1, 2, 1]
    cluster.gang_gone()
