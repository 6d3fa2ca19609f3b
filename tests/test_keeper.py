"""Checkpoints are kept when it is time, and a run that lost members, or all of them, ends as if it had not."""

from __future__ import annotations

import errno
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkdl.checkpoint import Checkpoints
from sparkdl.clock import Clock
from sparkdl.cluster import InlineCluster, LocalCluster
from sparkdl.errors import Fenced, InvalidInput, MemberLost, PeerLost
from sparkdl.files import Folder
from sparkdl.keeper import CheckpointKeeper, Every, young
from sparkdl.supervisor import Supervisor
from sparkdl.world import World
from tests.faults import Fault, flip
from tests.test_resume import CASES, assert_alike, data

# ---- when ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (500, Every(500, "steps")),
        ("1 epoch", Every(1, "epochs")),
        ("3 epochs", Every(3, "epochs")),
        ("30 seconds", Every(30, "seconds")),
        ("auto", Every(1, "auto")),
    ],
)
def test_distances(given, expected):
    assert Every.of(given) == expected


@pytest.mark.parametrize("given", [0, -1, True, 2.5, "", "0 epochs", "2 days", "epochs", "2epochs", None])
def test_what_is_no_distance(given):
    with pytest.raises(InvalidInput, match=r"checkpointEvery is .*; expected a number of steps"):
        Every.of(given)


def test_youngs_interval():
    assert young(2.0, 3600.0) == pytest.approx(120.0)
    assert young(0.001, 60.0) == 5.0


class Quiet:
    """Checkpoints that keep only the steps at which they were written."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.pinned: list[int] = []


class Counting(CheckpointKeeper):
    """A keeper whose checkpoints go nowhere."""

    def __init__(self, every: Every) -> None:
        super().__init__(Quiet(), every)
        self._look, self._saved = 1, time.monotonic()

    def _write(self, world, state, *, pinned):
        self.checkpoints.steps.append(world.clock.step)
        if pinned:
            self.checkpoints.pinned.append(world.clock.step)


def course(keeper: CheckpointKeeper, *, epochs: int = 3, steps: int = 4, tick: Any = None) -> Quiet:
    """Twelve steps."""
    world = World(clock=Clock())
    for epoch in range(epochs):
        for step in range(steps):
            world.clock.tick(8)
            if tick is not None:
                tick()
            if step == steps - 1:
                world.clock.end_epoch()
            keeper.after_step(world, dict, over=(epoch, step) == (epochs - 1, steps - 1))
    return keeper.checkpoints


@pytest.mark.parametrize(
    ("every", "steps", "pinned"),
    [
        (1, list(range(1, 13)), [4, 8, 12]),
        (5, [5, 10, 12], [12]),
        (100, [12], [12]),
        ("1 epoch", [4, 8, 12], [4, 8, 12]),
        ("2 epochs", [8, 12], [8, 12]),
        ("100 seconds", [12], [12]),
    ],
)
def test_it_is_time_after_steps_or_epochs_and_at_the_end(every, steps, pinned):
    kept = course(Counting(Every.of(every)))
    assert kept.steps == steps
    assert kept.pinned == pinned  # those that are of an epoch's end


def test_seconds_are_rank_0s(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("sparkdl.keeper.time.monotonic", lambda: now[0])
    keeper = Counting(Every.of("10 seconds"))

    def tick() -> None:
        now[0] += 1.0

    assert course(keeper, epochs=5, steps=7, tick=tick).steps == [10, 20, 30, 35]


# ---- runs ------------------------------------------------------------------------------------------------------------

STATE = "00001"  # rank 1's shard


@pytest.fixture
def pair():
    with LocalCluster(2, timeout=60) as cluster:
        yield cluster


def keeper(folder: Path, every: int | str = 2, run: str = "a run") -> CheckpointKeeper:
    return CheckpointKeeper(Checkpoints(str(folder / "checkpoints"), run=run), Every.of(every))


def fit(cluster: Any, case: str, kept: CheckpointKeeper | None, *faults: Fault, **options: Any) -> Any:
    training, columns = CASES[case]()
    options = {"keeper": kept, "hooks": [*training.hooks, *faults]} | options
    attempt = 0 if kept is None else kept.checkpoints.next_attempt()
    return cluster.gang(replace(training, **options), data(), columns, attempt=attempt)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("case", "how", "rank", "step"),
    [("Adam", "kill", 1, 7), ("Adam", "stop", 0, 5), ("SGD", "kill", 0, 1), ("SGD", "fail", 1, 8)],
)
def test_a_run_that_lost_a_member_ends_as_if_it_had_not(pair, tmp_path, case, how, rank, step):
    supervisor = Supervisor(pair, back_off=0, heartbeat_timeout=3)
    fault = Fault(how, rank, step, str(tmp_path / "mark"))
    found = fit(supervisor, case, keeper(tmp_path), fault)
    assert len(supervisor.failures) == 1
    assert supervisor.failures[0].rank == rank
    assert_alike(found, fit(pair, case, None))


@pytest.mark.chaos
def test_it_is_lost_three_times(pair, tmp_path):
    supervisor = Supervisor(pair, back_off=0)
    faults = [Fault("kill", step % 2, step, str(tmp_path / f"mark {step}")) for step in (3, 4, 9)]
    found = fit(supervisor, "SGD", keeper(tmp_path), *faults)
    assert [type(error) for error in supervisor.failures] == [MemberLost] * 3
    assert_alike(found, fit(pair, "SGD", None))


@pytest.mark.chaos
def test_the_same_call_again_goes_on(pair, tmp_path):
    fault = Fault("kill", 0, 6, str(tmp_path / "mark"))
    with pytest.raises(MemberLost):
        fit(pair, "Adam", keeper(tmp_path), fault)
    assert_alike(fit(pair, "Adam", keeper(tmp_path)), fit(pair, "Adam", None))


STEPS: list[int] = []
FULL = threading.Event()


class Watches:
    """Notes the steps that are taken in this process, and fills the disk at the fifth."""

    def on_step(self, run: Any) -> None:
        STEPS.append(run.clock.step)
        if run.clock.step == 5:
            FULL.set()


@pytest.fixture
def steps():
    STEPS.clear()
    FULL.clear()
    return STEPS


def test_a_run_that_is_over_is_not_run_again_and_more_epochs_go_on(tmp_path, steps):
    first = fit(InlineCluster(), "SGD", keeper(tmp_path), hooks=[Watches()], epochs=1)
    again = fit(InlineCluster(), "SGD", keeper(tmp_path), hooks=[Watches()], epochs=1)
    assert_alike(again, first)
    assert steps == [1, 2, 3, 4, 5]
    more = fit(InlineCluster(), "SGD", keeper(tmp_path), hooks=[Watches()])
    assert steps == list(range(1, 11))
    assert_alike(more, fit(InlineCluster(), "SGD", None))


@pytest.mark.chaos
def test_a_damaged_checkpoint_is_passed_over(pair, tmp_path):
    fault = Fault("kill", 1, 7, str(tmp_path / "mark"))
    with pytest.raises(MemberLost):
        fit(pair, "Adam", keeper(tmp_path), fault)
    newest = sorted((tmp_path / "checkpoints").glob("attempt-*"))[-1]
    flip(newest / STATE)
    assert_alike(fit(pair, "Adam", keeper(tmp_path)), fit(pair, "Adam", None))


@pytest.mark.chaos
def test_a_full_disk_costs_a_warning(tmp_path, monkeypatch, steps):
    write = Folder.write

    def fails(self: Folder, path: str, content: bytes) -> None:
        if FULL.is_set() and path.endswith("00000"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, path, content)

    monkeypatch.setattr(Folder, "write", fails)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        found = fit(InlineCluster(), "SGD", keeper(tmp_path), hooks=[Watches()])
    assert_alike(found, fit(InlineCluster(), "SGD", None, hooks=[]))
    latest = Checkpoints(str(tmp_path / "checkpoints"), run="a run").latest()
    assert latest is not None
    assert latest[1].manifest.clock.step == 4


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_another_run_is_refused(tmp_path):
    fit(InlineCluster(), "SGD", keeper(tmp_path))
    with pytest.raises(InvalidInput, match=r"'a run'.*'another'"):
        fit(InlineCluster(), "SGD", keeper(tmp_path, run="another"))


@pytest.mark.slow
def test_another_number_of_members_is_refused(pair, tmp_path):
    fit(InlineCluster(), "SGD", keeper(tmp_path))
    with pytest.raises(InvalidInput, match="checkpoints of 1 members, and this gang has 2"):
        fit(pair, "SGD", keeper(tmp_path))


def test_an_older_attempt_may_not_begin(tmp_path):
    kept = keeper(tmp_path)
    fit(InlineCluster(), "SGD", kept)
    training, columns = CASES["SGD"]()
    with pytest.raises(Fenced, match="attempt 0"):
        InlineCluster().gang(replace(training, keeper=keeper(tmp_path)), data(), columns, attempt=0)


class Store:
    """What ``World.agree`` does, for members that are threads."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=30)
        self.values: dict[str, dict[int, Any]] = {}

    def agree(self, rank: int, key: str, value: Any) -> list[Any]:
        self.values.setdefault(key, {})[rank] = value
        self.barrier.wait()
        found = [self.values[key][each] for each in sorted(self.values[key])]
        self.barrier.wait()
        return found


def test_a_directory_that_a_member_does_not_see_is_named(tmp_path):
    store = Store(2)

    def load(rank: int) -> Exception | None:
        world = World(rank, 2, host=f"host{rank}")
        world.agree = lambda key, value: store.agree(rank, key, value)  # type: ignore[method-assign]
        try:
            keeper(tmp_path / f"host{rank}").load(world)
        except Exception as error:
            return error
        return None

    with ThreadPoolExecutor(2) as threads:
        errors = list(threads.map(load, range(2)))
    for error in errors:
        assert isinstance(error, InvalidInput)
        assert "rank 1 on host1 cannot see what rank 0 on host0 wrote" in error.message
    assert not list(tmp_path.glob("*/checkpoints/visible-*"))


def test_what_rank_0_is_refused_is_the_cause_and_not_its_consequence(tmp_path):
    fit(InlineCluster(), "SGD", keeper(tmp_path))
    store = Store(2)

    def load(rank: int) -> Exception | None:
        world = World(rank, 2, attempt=0)
        world.agree = lambda key, value: store.agree(rank, key, value)  # type: ignore[method-assign]
        try:
            keeper(tmp_path).load(world)
        except Exception as error:
            return error
        return None

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(load, range(2))
    assert isinstance(first, Fenced)
    assert isinstance(second, PeerLost)
