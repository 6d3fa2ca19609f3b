"""Checkpoints are kept when it is time, and a run that lost members, or all of them, ends as if it had not."""

from __future__ import annotations

import errno
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sparkdl.checkpoint.async_saver import Checkpoint
from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.group.world import World
from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.local import LocalCluster
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import Fenced, InvalidInput, PeerLost, Stopped, WorkerFailed, WorkerLost
from sparkdl.io.files import Folder
from sparkdl.io.weights import read_state
from sparkdl.telemetry.clock import Clock
from sparkdl.training.loop import Training
from sparkdl.training.objective import Objective
from tests.faults import Fault, flip, newest
from tests.training.test_resume import CASES, COLUMNS, Steps, assert_alike, data

# ---- when ------------------------------------------------------------------------------------------------------------


class Quiet:
    """A saver that keeps only the steps at which it was called."""

    cost = None

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.pinned: list[int] = []

    def check(self) -> None:
        pass

    def wait(self) -> None:
        pass

    def save(self, checkpoint: Checkpoint) -> None:
        self.steps.append(checkpoint.clock.step)
        if checkpoint.pinned:
            self.pinned.append(checkpoint.clock.step)


class Counting(Checkpointer):
    """A keeper whose checkpoints go nowhere."""

    def __init__(self, every: CheckpointInterval, **options: Any) -> None:
        super().__init__(Checkpoints("nowhere", run="a run"), every, **options)
        self._saver = Quiet()  # type: ignore[assignment]
        self._ear = SimpleNamespace(asked=threading.Event())  # type: ignore[assignment]
        self._look, self._saved, self._seen = 1, time.monotonic(), time.monotonic()


def course(keeper: Checkpointer, *, epochs: int = 3, steps: int = 4, tick: Any = None) -> Quiet:
    """Twelve steps."""
    world = World(clock=Clock())
    for epoch in range(epochs):
        for step in range(steps):
            world.clock.tick(8)
            if tick is not None:
                tick()
            if step == steps - 1:
                world.clock.end_epoch()
            keeper.after_step(world, lambda: {"own": {}, "alike": {}}, over=(epoch, step) == (epochs - 1, steps - 1))
    return keeper._saver


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
    kept = course(Counting(CheckpointInterval.of(every)))
    assert kept.steps == steps
    assert kept.pinned == pinned  # those that are of an epoch's end


@pytest.mark.parametrize(("every", "steps"), [(100, [4, 8, 12]), (3, [3, 4, 7, 8, 11, 12]), ("2 epochs", [4, 8, 12])])
def test_an_elastic_run_keeps_the_end_of_every_epoch(every, steps):
    kept = course(Counting(CheckpointInterval.of(every), elastic=True))
    assert kept.steps == steps
    assert kept.pinned == [4, 8, 12]


@pytest.fixture
def tick(monkeypatch):
    """Each step takes a second."""
    now = [0.0]
    monkeypatch.setattr("sparkdl.checkpoint.checkpointer.time.monotonic", lambda: now[0])
    return lambda: now.__setitem__(0, now[0] + 1.0)


def test_a_word_from_the_driver_saves_and_stops(tick):
    keeper = Counting(CheckpointInterval.of(100))

    def asks() -> None:
        tick()
        if keeper._epochs == 1:
            keeper._ear.asked.set()

    with pytest.raises(Stopped, match="asked to stop, and is saved as it was after step 5"):
        course(keeper, tick=asks)
    assert keeper._saver.steps == [5]


def test_seconds_are_rank_0s(tick):
    assert course(Counting(CheckpointInterval.of("10 seconds")), epochs=5, steps=7, tick=tick).steps == [10, 20, 30, 35]


# ---- runs ------------------------------------------------------------------------------------------------------------

STATE = "00001"  # rank 1's shard


@pytest.fixture(scope="module")
def pair():
    """Two members; those that are lost are replaced."""
    with LocalCluster(2, timeout=60) as cluster:
        yield cluster


def keeper(folder: Path, every: int | str = 2, run: str = "a run", **options: Any) -> Checkpointer:
    return Checkpointer(Checkpoints(str(folder / "checkpoints"), run=run), CheckpointInterval.of(every), **options)


def fit(cluster: Any, case: str, kept: Checkpointer | None, *faults: Fault, **options: Any) -> Any:
    training, columns = CASES[case]()
    options = {"keeper": kept, "hooks": [*training.hooks, *faults]} | options
    attempt = 0 if kept is None else kept.checkpoints.next_attempt()
    return cluster.gang(replace(training, **options), data(), columns, attempt=attempt)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("case", "how", "rank", "step"),
    [("Adam", "kill", 1, 7), ("Adam", "stop", 0, 5)],  # more of them, of SGD and in every phase, in tests/chaos
)
def test_a_run_that_lost_a_member_ends_as_if_it_had_not(pair, tmp_path, case, how, rank, step):
    supervisor = Supervisor(pair, back_off=0, heartbeat_timeout=3)
    fault = Fault(how, rank, step, str(tmp_path / "mark"))
    found = fit(supervisor, case, keeper(tmp_path), fault)
    assert len(supervisor.failures) == 1
    assert supervisor.failures[0].rank == rank
    assert_alike(found, fit(pair, case, None))


@pytest.mark.chaos
def test_the_same_call_again_goes_on(pair, tmp_path):
    fault = Fault("kill", 0, 6, str(tmp_path / "mark"))
    with pytest.raises(WorkerLost):
        fit(pair, "Adam", keeper(tmp_path), fault)
    assert_alike(fit(pair, "Adam", keeper(tmp_path)), fit(pair, "Adam", None))


STEPS: list[int] = []


class Watches:
    """Notes the steps that are taken in this process."""

    def on_step(self, run: Any) -> None:
        STEPS.append(run.clock.step)


@pytest.fixture
def steps():
    STEPS.clear()
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
    with pytest.raises(WorkerLost):
        fit(pair, "Adam", keeper(tmp_path), fault)
    flip(newest(tmp_path) / STATE)
    assert_alike(fit(pair, "Adam", keeper(tmp_path)), fit(pair, "Adam", None))


@pytest.mark.chaos
def test_a_full_disk_costs_a_warning(tmp_path, monkeypatch, steps):
    write = Folder.write

    def fails(self: Folder, path: str, *content: bytes) -> None:
        name, _, shard = path.rpartition("/")
        if shard == "00000" and int(name.rpartition("-")[2]) > 5:  # by what is written: that is done beside the steps
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, path, *content)

    monkeypatch.setattr(Folder, "write", fails)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        found = fit(InlineCluster(), "SGD", keeper(tmp_path), hooks=[Watches()])
    assert_alike(found, fit(InlineCluster(), "SGD", None, hooks=[]))
    latest = Checkpoints(str(tmp_path / "checkpoints"), run="a run").latest()
    assert latest is not None
    assert latest[1].manifest.clock.step == 4


# ---- gangs and rows that are not as they were -----------------------------------------------------------------------


def plain(batch: int) -> Training:
    """Three epochs in float64, without anything that depends on how rows are dealt out but what is in a batch."""
    optimizer = partial(torch.optim.Adam, lr=0.1)
    objective = Objective(partial(torch.nn.Linear, 3, 4), torch.nn.CrossEntropyLoss(), optimizer, precision="fp64")
    return Training(objective, batch, 3, seed=1)


PLAIN = replace(COLUMNS, floating="float64", weight=None)


def weights(found: Any) -> torch.Tensor:
    return torch.cat([each.flatten() for each in read_state(found[0].weights).values()])


@pytest.mark.chaos
def test_a_gang_of_another_size_goes_on_from_an_epochs_end(pair, tmp_path):
    training = plain(144)  # one step an epoch, on all rows: the same whoever has them
    whole = pair.gang(training, data(), PLAIN)
    pair.gang(replace(training, epochs=2, keeper=keeper(tmp_path)), data(), PLAIN, attempt=0)
    seen = tmp_path / "seen"
    one = replace(training, keeper=keeper(tmp_path), hooks=[Steps(seen)])
    found = InlineCluster().gang(one, data(), PLAIN, attempt=1)
    assert seen.read_text().split() == ["2/3"]
    assert torch.allclose(weights(found), weights(whole), rtol=1e-9, atol=1e-12)
    more = replace(training, epochs=5, keeper=keeper(tmp_path))
    grown = pair.gang(more, data(), PLAIN, attempt=2)  # rank 1 is new
    assert torch.allclose(
        weights(grown), weights(pair.gang(replace(training, epochs=5), data(), PLAIN)), rtol=1e-9, atol=1e-12
    )


@pytest.mark.chaos
def test_a_gang_of_another_size_begins_an_epoch_again(pair, tmp_path):
    training = plain(36)
    fault = Fault("kill", 1, 7, str(tmp_path / "mark"))
    broken = replace(training, keeper=keeper(tmp_path, 1, elastic=True), hooks=[fault])
    with pytest.raises(WorkerLost):
        pair.gang(broken, data(), PLAIN, attempt=0)
    seen = tmp_path / "seen"
    again = replace(training, keeper=keeper(tmp_path, 1, elastic=True), hooks=[Steps(seen)])
    with pytest.warns(RuntimeWarning, match="the gang has 1 members and had 2"):
        found = InlineCluster().gang(again, data(), PLAIN, attempt=1)
    # Nothing within an epoch is gone on from: no row comes twice and none is left out.
    assert seen.read_text().split() == [f"{(step - 1) // 4}/{step}" for step in range(5, 13)]
    assert [row["samples"] for row in found[0].history] == [144, 288, 432]


def test_rows_that_come_back_different_in_the_same_fit_begin_the_epoch_again(tmp_path):
    kept = keeper(tmp_path, 1)
    training, columns = CASES["SGD"]()
    seen = Path(tmp_path, "seen")
    fault = Fault("fail", 0, 7, str(tmp_path / "mark"))
    with pytest.raises(WorkerFailed):
        InlineCluster().gang(replace(training, keeper=kept, hooks=[fault]), data(), columns, attempt=0)
    rows = data()
    rows["x"][5, 0] += 1
    with pytest.warns(RuntimeWarning, match="the rows of part 0 have come back different"):
        InlineCluster().gang(replace(training, keeper=kept, hooks=[Steps(seen)]), rows, columns, attempt=1)
    assert seen.read_text().split() == [f"1/{step}" for step in range(6, 11)]


def test_a_temporary_directory_that_a_member_does_not_see_costs_a_warning(tmp_path):
    training, columns = CASES["SGD"]()
    kept = keeper(tmp_path, 1, token="nobody-announced-it")
    with pytest.warns(RuntimeWarning, match=r"there are no checkpoints: .*rank 0 on .* cannot read"):
        InlineCluster().gang(replace(training, keeper=kept), data(), columns)
    assert list(tmp_path.iterdir()) == []
    kept = keeper(tmp_path, 3, token="announced")
    SharedDirectory(kept.checkpoints.folder, "announced").announce()
    InlineCluster().gang(replace(training, keeper=kept), data(), columns)
    _, newest = kept.checkpoints.latest()
    assert newest.manifest.clock.step == 9  # of ten: nobody would read that of the end


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_another_run_is_refused(tmp_path):
    fit(InlineCluster(), "SGD", keeper(tmp_path))
    with pytest.raises(InvalidInput, match=r"'a run'.*'another'"):
        fit(InlineCluster(), "SGD", keeper(tmp_path, run="another"))


def test_other_data_are_refused(tmp_path):
    fit(InlineCluster(), "SGD", keeper(tmp_path))
    training, columns = CASES["SGD"]()
    rows = data()
    rows["x"][5, 0] += 1
    with pytest.raises(InvalidInput, match="checkpoints of a run on other data: 144 rows, and now there are 144"):
        InlineCluster().gang(replace(training, keeper=keeper(tmp_path)), rows, columns, attempt=1)


def test_an_older_attempt_may_not_begin(tmp_path):
    kept = keeper(tmp_path)
    fit(InlineCluster(), "SGD", kept)
    training, columns = CASES["SGD"]()
    with pytest.raises(Fenced, match="attempt 0"):
        InlineCluster().gang(replace(training, keeper=keeper(tmp_path)), data(), columns, attempt=0)


class Store:
    """What ``World.all_gather_json`` does, for members that are threads."""

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
        world.all_gather_json = lambda key, value: store.agree(rank, key, value)  # type: ignore[method-assign]
        try:
            keeper(tmp_path / f"host{rank}").load(world, None)  # type: ignore[arg-type]
        except Exception as error:
            return error
        return None

    with ThreadPoolExecutor(2) as threads:
        errors = list(threads.map(load, range(2)))
    for error in errors:
        assert isinstance(error, InvalidInput)
        assert "rank 1 on host1 cannot read what rank 0 on host0 wrote" in error.message
    assert not list(tmp_path.glob("*/checkpoints/visible-*"))


def test_what_rank_0_is_refused_is_the_cause_and_not_its_consequence(tmp_path):
    fit(InlineCluster(), "SGD", keeper(tmp_path))
    store = Store(2)

    def load(rank: int) -> Exception | None:
        world = World(rank, 2, attempt=0)
        world.all_gather_json = lambda key, value: store.agree(rank, key, value)  # type: ignore[method-assign]
        try:
            keeper(tmp_path).load(world, None)  # type: ignore[arg-type]
        except Exception as error:
            return error
        return None

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(load, range(2))
    assert isinstance(first, Fenced)
    assert isinstance(second, PeerLost)
