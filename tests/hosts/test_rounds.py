"""Rounds of which executors or the driver go, of their own accord or not, end as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.faults import Fault
from tests.faults.round_runs import PARTS, ROUNDS, assert_as_if_nothing_had_happened, on_spark
from tests.faults.rounds import DRIVER, calls
from tests.hosts.driving import PATIENCE, Driver
from tests.hosts.standalone import Standalone

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(400)]

ADMM = "ConsensusADMM"

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
def quiet(two_hosts: Standalone) -> Callable[[str], Any]:
    """What a run of an algorithm comes to when nothing happens."""
    found: dict[str, Any] = {}

    def of(name: str) -> Any:
        if name not in found:
            folder = two_hosts.shared / f"quiet-{name}"
            found[name] = start(two_hosts.driver(), folder, name).result()
            assert_as_if_nothing_had_happened(found[name], found[name], folder, name)
            assert len(calls(folder)) == ROUNDS * PARTS
        return found[name]

    return of


def start(driver: Driver, folder: Path, name: str, faults: Sequence[Fault] = (), *more: Any) -> Driver:
    """Begin a run, or go on with it."""
    return driver.call(on_spark, folder, name, [asdict(fault) for fault in faults], *more)


def workers(folder: Path, number: int) -> set[int]:
    """The Python processes that mapped parts in a round."""
    return {call.pid for call in calls(folder, number)}


@pytest.mark.parametrize("name", [ADMM, "LBFGS"])
def test_an_executor_is_killed(cluster, tmp_path, quiet, name):
    """With it go the packed rows, the files of its parts, and what they were shuffled from."""
    expected, mark = quiet(name), tmp_path / "mark"
    found = start(cluster.driver(), tmp_path, name, [Fault("executor", 1, 3, str(mark), "map")]).result()
    assert mark.exists()
    assert_as_if_nothing_had_happened(found, expected, tmp_path, name)
    assert len(calls(tmp_path, 3, 1)) == 2
    assert workers(tmp_path, 0) - workers(tmp_path, ROUNDS - 1)
    cluster.gang_gone()


def test_the_same_command_goes_on_when_the_driver_was_killed(cluster, tmp_path, quiet):
    """In the middle of a round, and between two; then it goes on in a session that speculates."""
    expected = quiet(ADMM)
    faults = [
        Fault("hold", 2, 2, f"{tmp_path}/round", "map"),
        Fault("hold", DRIVER, 4, f"{tmp_path}/between", "kept"),
    ]
    for fault in faults:
        driver = start(cluster.driver(), tmp_path, ADMM, faults)
        driver.until(Path(fault.mark).exists, f"the {fault.phase} of round {fault.step}", timeout=PATIENCE)
        driver.kill()
        cluster.nothing_left()
    found = start(cluster.driver(**SPECULATION), tmp_path, ADMM, faults).result()
    assert_as_if_nothing_had_happened(found, expected, tmp_path, ADMM)
    assert [len(calls(tmp_path, number)) for number in (0, 1, 3, 4)] == [PARTS] * 4
    assert len(calls(tmp_path, 2, 2)) == 2


def test_slow_parts_are_mapped_twice_and_count_once(cluster, tmp_path, quiet):
    """A part waits until somebody else maps it as well: nobody would, but for speculation."""
    expected = quiet(ADMM)
    faults = [Fault("hold", part, number, f"{tmp_path}/{number}", "map") for number, part in ((0, 1), (2, 1), (4, 2))]
    found = start(cluster.driver(**SPECULATION), tmp_path, ADMM, faults).result()
    assert found == expected
    for fault in faults:
        assert Path(f"{fault.mark}.go").exists()
        assert not Path(f"{fault.mark}.late").exists()
        assert len({call.pid for call in calls(tmp_path, fault.step, fault.rank)}) >= 2
    cluster.gang_gone()


def test_executors_come_and_go(cluster, tmp_path, quiet):
    """There are none in the beginning; between two rounds all leave, and with them everything but the memories."""
    expected = quiet(ADMM)
    driver = cluster.driver(settled=False, **COMING_AND_GOING)
    try:
        found = start(driver, tmp_path, ADMM, [], [2]).result(2 * PATIENCE)
    finally:
        cluster.end_driver()
    assert_as_if_nothing_had_happened(found, expected, tmp_path, ADMM)
    assert not workers(tmp_path, 2) & workers(tmp_path, 3)
