"""A run of which an executor, a host or the driver is lost ends as one that lost nothing, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import drivers, workers
from tests.hosts.driving import Driver
from tests.hosts.hosts import Host, ended, until
from tests.hosts.standalone import Standalone

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(240)]

HELD = 5  # the step after which harm is done; the newest checkpoint is that of step 4
RESUMED = [*range(1, HELD + 1), *range(HELD, workers.STEPS + 1)]


@pytest.fixture(scope="module")
def undisturbed(two_hosts: Standalone) -> Callable[[int], Any]:
    """What the case comes to with so many members when nobody does any harm."""
    found: dict[int, Any] = {}

    def of(size: int) -> Any:
        if size not in found:
            two_hosts.heal()
            found[size] = _fit(two_hosts, two_hosts.shared / f"undisturbed-{size}", size).result()
            assert found[size]["failures"] == []
        return found[size]

    return of


@dataclass(frozen=True)
class Member:
    """A member that waits at a step: where it is."""

    cluster: Standalone
    host: Host
    pid: int
    mark: Path

    def go_on(self) -> None:
        """It waits no longer."""
        Path(f"{self.mark}.go").touch()


def _fit(cluster: Standalone, folder: Path, *more: Any) -> Driver:
    return cluster.driver().call(drivers.fit, folder, *more)


def start(cluster: Standalone, folder: Path, *, size: int = 2, rank: int = 1) -> tuple[Driver, Member]:
    """Begin a run, and return when one of its members waits at step ``HELD``."""
    mark = folder.with_name(f"{folder.name}.mark")
    driver = _fit(cluster, folder, size, {"rank": rank, "step": HELD, "mark": str(mark)})
    driver.until(mark.exists, f"step {HELD}")
    host, pid = mark.read_text().split()
    return driver, Member(cluster, cluster.hosts[host], int(pid), mark)


def steps(folder: Path) -> list[list[str]]:
    """Rank, number and host of each step that a member has taken."""
    return [line.split() for line in (folder / "steps").read_text().splitlines()]


def assert_as_if_nothing_had_happened(found: Any, expected: Any, folder: Path, taken: list[int] = RESUMED) -> None:
    assert (found["weights"], found["history"]) == (expected["weights"], expected["history"])
    assert [int(step) for rank, step, _ in steps(folder) if rank == "0"] == taken
    assert [path for path in folder.rglob("*") if path.name.endswith(".tmp")] == []
    checkpoints = list(folder.glob("checkpoints/attempt-*"))
    assert len(checkpoints) >= 2
    assert all((each / "manifest.json").exists() for each in checkpoints)


# ---- what is done to a member, or to its host ------------------------------------------------------------------------


def ancestor(pid: int, name: bytes) -> int:
    """The nearest process above ``pid`` whose command has ``name`` in it."""
    while name not in Path("/proc", str(pid), "cmdline").read_bytes():
        pid = int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
    return pid


def kill_the_executor(member: Member) -> None:
    os.kill(ancestor(member.pid, b"CoarseGrainedExecutorBackend"), signal.SIGKILL)


def kill_the_worker(member: Member) -> None:
    """Its executors end with it, and Spark puts them on the other host."""
    os.kill(member.cluster.daemon(member.host), signal.SIGKILL)


def stop_the_member(member: Member) -> None:
    os.kill(member.pid, signal.SIGSTOP)


def pull_the_cable(member: Member) -> None:
    """All of it goes on, but nobody hears of it."""
    member.cluster.unplug(member.host)
    member.go_on()


def cut_the_power(member: Member) -> None:
    member.cluster.unplug(member.host)
    member.host.kill()


@dataclass(frozen=True)
class Harm:
    """What is done, and what follows.

    Attributes:
        do: it.
        rank: of the member that it is done to.
        said: of the failure.
        moved: whether the host is lost with it, and the gang goes on on the other one.
    """

    do: Callable[[Member], None]
    rank: int
    said: str
    moved: bool = False


HARMS = [
    Harm(kill_the_executor, 1, "Spark lost a worker of the gang"),
    Harm(stop_the_member, 1, "sent nothing for"),
    Harm(kill_the_worker, 0, "Spark lost a worker of the gang", moved=True),
    Harm(pull_the_cable, 1, "sent nothing for", moved=True),
    Harm(cut_the_power, 0, "sent nothing for", moved=True),
]


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.do.__name__)
def test_it_ends_as_if_nothing_had_happened(cluster, tmp_path, undisturbed, harm):
    expected, folder = undisturbed(2), tmp_path / "run"
    driver, member = start(cluster, folder, rank=harm.rank)
    harm.do(member)
    found = driver.result()
    assert_as_if_nothing_had_happened(found, expected, folder)
    (kind, lost, host, message), *more = found["failures"]
    assert (kind, lost, host) == ("WorkerLost", harm.rank, member.host.name)
    assert harm.said in message
    # Until Spark has given a silent host up it may send the next attempt there.
    assert [(kind, lost) for kind, lost, *_ in more] in ([], [("WorkerLost", harm.rank)])
    assert harm.moved or not more
    if harm.moved:
        others = {host.name for host in cluster.workers} - {member.host.name}
        assert {host for _, step, host in steps(folder) if int(step) == workers.STEPS} == others
        cluster.nothing_left(member.host)
    cluster.gang_gone()


def test_a_host_that_is_lost_before_anything_is_sent_to_it(cluster, tmp_path, undisturbed):
    expected, folder, host = undisturbed(2), tmp_path / "run", cluster.workers[0]
    cluster.driver()
    cluster.unplug(host)
    found = _fit(cluster, folder).result()
    assert_as_if_nothing_had_happened(found, expected, folder, [*range(1, workers.STEPS + 1)])
    # The tasks that Spark sends there end when it gives the host up; those of a gang end it.
    assert [kind for kind, *_ in found["failures"]] in ([], ["WorkerLost"])
    assert host.name not in {name for *_, name in steps(folder)}
    cluster.nothing_left(host)
    cluster.gang_gone()


def test_three_members(cluster, tmp_path, undisturbed):
    expected, folder = undisturbed(3), tmp_path / "run"
    driver, member = start(cluster, folder, size=3, rank=2)
    kill_the_executor(member)
    found = driver.result()
    assert_as_if_nothing_had_happened(found, expected, folder)
    assert [kind for kind, *_ in found["failures"]] == ["WorkerLost"]
    cluster.gang_gone()


def test_the_same_command_goes_on_when_the_driver_was_killed(cluster, tmp_path, undisturbed):
    expected, folder = undisturbed(2), tmp_path / "run"
    driver, member = start(cluster, folder)
    driver.kill()
    cluster.nothing_left()
    until(lambda: ended(member.pid), "the end of a member")  # which is of no host a moment before
    found = _fit(cluster, folder).result()
    assert found["failures"] == []
    assert_as_if_nothing_had_happened(found, expected, folder)
    cluster.gang_gone()
