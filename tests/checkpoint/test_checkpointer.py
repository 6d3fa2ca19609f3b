"""Checkpoints are saved when due, replicated state once, and a resumed run ends bit-identical."""

from __future__ import annotations

import errno
import json
import math
import threading
import time
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from sparkdl.checkpoint.async_saver import Saver, SaveStatus
from sparkdl.checkpoint.checkpointer import Checkpointer, StopPoller
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.checkpoint.slices import SharedState, deal, files_of
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster import elastic
from sparkdl.cluster.group.world import World
from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.local import LocalCluster
from sparkdl.cluster.protocol import Capacity
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.data.clock import Clock
from sparkdl.errors import CheckpointDamaged, Fenced, InvalidInput, PeerLost, Stopped, WorkerFailed, WorkerLost
from sparkdl.io.files import Folder
from sparkdl.io.serialization import pack_state, unpack_state
from sparkdl.io.weights import Slice
from sparkdl.telemetry.emit import record
from sparkdl.training.loop import Training
from sparkdl.training.objective.objective import Objective
from tests.chaos.runs import assert_alike, data
from tests.checkpoint.saving import together
from tests.faults import Fault
from tests.results import merged
from tests.training.test_resume import CASES, COLUMNS, Steps


@pytest.mark.parametrize(
    ("value", "unit", "cost", "attempt", "seconds"),
    [
        (500, "steps", 1.0, 0, math.inf),
        ("1 epoch", "epochs", 1.0, 0, math.inf),
        ("3 epochs", "epochs", 1.0, 0, math.inf),
        ("30 seconds", "seconds", None, 0, 30.0),
        ("auto", "auto", None, 3, 60.0),
        ("auto", "auto", 0.0001, 0, 5.0),
        ("auto", "auto", 2.0, 0, 240.0),
        ("auto", "auto", 2.0, 3, 120.0),  # three failures: four times as many a day
    ],
)
def test_interval_is_parsed_and_converted_to_seconds(value, unit, cost, attempt, seconds):
    interval = CheckpointInterval.of(value)
    assert interval == CheckpointInterval(int(str(value).split()[0].replace("auto", "1")), unit)
    assert interval.seconds(cost, attempt) == seconds
    for invalid in (0, -1, True, 2.5, "", "0 epochs", "2 days", "epochs", "2epochs", None):
        with pytest.raises(InvalidInput, match=r"checkpointInterval is .*; expected a number of steps"):
            CheckpointInterval.of(invalid)


EMPTY = {"local": {}, "shared": {}, "slices": {}}


def saved_steps(every, *, epochs=3, steps=4, before_step=lambda checkpointer: None, **options):
    """The steps of all and of pinned checkpoints of a run whose checkpoints go nowhere."""
    checkpointer = Checkpointer(Checkpoints("nowhere", run="a run"), CheckpointInterval.of(every), **options)
    saved, world = [], World(clock=Clock())
    others = {"check": lambda: None, "wait": lambda: SaveStatus(saved[-1][0] if saved else None), "cost": None}
    save = lambda state, rows: saved.append((state.clock.step, state.pinned))  # noqa: E731
    checkpointer._saver = SimpleNamespace(save=save, **others)
    checkpointer._stop_poller = SimpleNamespace(asked=threading.Event())
    checkpointer._next_query, checkpointer._saved_at, checkpointer._queried_at = 1, time.monotonic(), time.monotonic()
    try:
        for step in range(1, epochs * steps + 1):
            world.clock.tick(8)
            before_step(checkpointer)
            if step % steps == 0:
                world.clock.end_epoch()
            checkpointer.after_step(world, lambda: EMPTY, finished=step == epochs * steps)
    except Stopped as stopped:
        saved.append((stopped.message, False))
    return [step for step, _ in saved], [step for step, pinned in saved if pinned]


@pytest.mark.parametrize(
    ("every", "elastic", "steps", "pinned"),
    [
        (1, False, list(range(1, 13)), [4, 8, 12]),
        (5, False, [5, 10, 12], [12]),
        ("1 epoch", False, [4, 8, 12], [4, 8, 12]),
        ("2 epochs", False, [8, 12], [8, 12]),
        ("100 seconds", False, [12], [12]),
        (100, True, [4, 8, 12], [4, 8, 12]),
        (3, True, [3, 4, 7, 8, 11, 12], [4, 8, 12]),
        ("2 epochs", True, [4, 8, 12], [4, 8, 12]),
    ],
)
def test_checkpoints_after_steps_epochs_and_at_the_end(every, elastic, steps, pinned):
    assert saved_steps(every, elastic=elastic) == (steps, pinned)


def test_checkpoints_after_seconds_and_on_a_stop_request(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("sparkdl.checkpoint.checkpointer.time.monotonic", lambda: now[0])

    def tick(checkpointer):
        now[0] += 1.0  # each step takes a second

    def tick_and_stop(checkpointer):
        tick(checkpointer)
        if checkpointer._epochs == 1:
            checkpointer._stop_poller.asked.set()

    assert saved_steps("10 seconds", epochs=5, steps=7, before_step=tick)[0] == [10, 20, 30, 35]
    stopped = "the run was asked to stop; its newest checkpoint is of step 5."
    assert saved_steps(100, before_step=tick_and_stop)[0] == [5, stopped]


MOMENTS = {name: torch.rand(20, 30) for name in ("exp_avg", "exp_avg_sq")}
STATE = {
    "model": {"weight": torch.rand(20, 30), "bias": torch.rand(20)},
    "optimizer": {"state": {0: {**MOMENTS, "step": torch.tensor(1.0)}, "0": {}}, "groups": [{"lr": 0.1}], "none": None},
    "others": {"empty": torch.zeros(0, 3), "listed": [torch.rand(3)]},
}


def size(nested):
    if isinstance(nested, dict):
        return sum(map(size, nested.values()))
    return nested.nbytes if isinstance(nested, torch.Tensor) else 0


def ordered(nested):
    return {key: ordered(nested[key]) for key in sorted(nested, key=repr)} if isinstance(nested, dict) else nested


@pytest.mark.parametrize("workers", [1, 2, 3, 20])
def test_shards_merge_to_the_state_and_share_no_tensor(workers):
    dealt = [deal(STATE, {}, rank, workers) for rank in range(workers)]
    shards = [unpack_state(pack_state(part)) for part, _ in dealt]
    sizes, merged = [*map(size, shards)], SharedState({}, {})
    for nested, (_, index) in zip(shards, dealt, strict=True):
        merged.add(nested, index)
    merged.check()
    assert pack_state(ordered(merged.state)) == pack_state(ordered(STATE))
    assert sum(sizes) == size(STATE)
    assert max(sizes) - min(sizes) <= 30 * 20 * 4
    for nested in shards[1:]:  # rank 0 alone has other values than tensors
        assert nested["optimizer"].keys() == {"state"}


def rowwise(rank, workers):
    """A worker's slices of the first dimension: every so many rows, by name and by index."""
    rows = {"weight": (20, 30), "bias": (20,), 0: (20, 30)}
    return {key: Slice(shape, (range(rank, 20, workers), *map(range, shape[1:]))) for key, shape in rows.items()}


def blocks(rank, workers):
    """A worker's columns of the weight, and the whole bias."""
    ends = [30 * number // workers for number in range(workers + 1)]
    part = Slice((20, 30), (range(20), range(ends[rank], ends[rank + 1])))
    return {"weight": part, 0: part}


def cut(nested, slices, key=None):
    """The state of a worker with these slices."""
    if isinstance(nested, dict):
        return {name: cut(value, slices, name if name in slices else key) for name, value in nested.items()}
    fits = isinstance(nested, torch.Tensor) and key in slices and slices[key].shape == nested.shape
    return nested[slices[key].index].clone() if fits else nested


@pytest.mark.parametrize("after", [lambda rank, workers: {}, rowwise, blocks], ids=["whole", "rows", "columns"])
@pytest.mark.parametrize("before", [lambda rank, workers: {}, rowwise, blocks], ids=["whole", "rows", "columns"])
@pytest.mark.parametrize(("saved", "resumed"), [(2, 3), (3, 1), (1, 2), (24, 5)])
def test_workers_of_any_number_and_layout_read_their_slices(before, after, saved, resumed):
    files, index = {}, {}
    for rank in range(saved):
        part, entries = deal(cut(STATE, before(rank, saved)), before(rank, saved), rank, saved)
        files[f"shared-{rank:05d}"], index[f"shared-{rank:05d}"] = pack_state(part), json.loads(json.dumps(entries))
    for rank in range(resumed):
        slices = after(rank, resumed)
        expected, live = cut(STATE, slices), cut(STATE, slices)["model"]
        for value in live.values():
            value.zero_()
        state = SharedState({"model": live}, slices)
        for name in files_of(index, slices):
            state.add(unpack_state(files[name], views=True), index[name])
        state.check()
        assert pack_state(ordered(state.state)) == pack_state(ordered(expected))
        assert all(state.state["model"][name].data_ptr() == value.data_ptr() for name, value in live.items())


def test_worker_reads_the_files_of_its_slices_alone_and_misses_values_that_no_file_has():
    index = {}
    for rank in range(4):
        part, index[f"shared-{rank:05d}"] = deal(cut(STATE, rowwise(rank, 4)), rowwise(rank, 4), rank, 4)
    assert files_of(index, rowwise(2, 4)) == ["shared-00000", "shared-00002"]
    assert files_of(index, rowwise(1, 2)) == ["shared-00000", "shared-00001", "shared-00003"]
    state = SharedState({}, rowwise(1, 2))
    state.add(part, index["shared-00003"])
    with pytest.raises(CheckpointDamaged, match=r"only some of the values of model\.weight"):
        state.check()


@dataclass(frozen=True)
class StopsAtFive:
    """Is asked to stop at step 5, where the file that ends with ``full`` cannot be written, or another fit begins."""

    checkpoints: Checkpoints
    every: int
    full: str
    resumed: int | None

    def __call__(self, world, shard):
        kept, write = Checkpointer(self.checkpoints, CheckpointInterval(self.every, "steps")), Folder.write

        def write_if_room(folder, name, *data):
            if self.full and folder.at(name).endswith(self.full):
                raise OSError(errno.ENOSPC, "No space left on device")
            write(folder, name, *data)

        world.broadcast_json = lambda key, value: {"due": False, "stop": world.clock.step == 5, "next": 0}
        kept._saver, kept._stop_poller = Saver(self.checkpoints, world, self.resumed), StopPoller(self.checkpoints, 0)
        with patch.object(Folder, "write", write_if_room), closing(kept._saver), closing(kept._stop_poller):
            for step in range(1, 6):
                world.clock.tick(8)
                if (step, self.full, world.rank) == (5, "fenced", 0):
                    kept._saver.wait()
                    self.checkpoints.fence(1)
                kept.after_step(world, lambda: EMPTY, finished=False)


FOURTH, FULL = "its newest checkpoint is of step 4", r", since checkpoint attempt-0000\S*-0+5 was not saved: "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("every", "full", "resumed", "message"),
    [
        (4, "", None, "its newest checkpoint is of step 5."),
        (4, "5/00000", None, f"{FOURTH}{FULL}rank 0 on .*No space left"),
        (4, "5/00001", None, f"{FOURTH}{FULL}rank 1 on .*No space left"),
        (4, "5/manifest.json", None, f"{FOURTH}{FULL}.*No space left"),
        (9, "/00001", None, f"it has no checkpoint{FULL}rank 1 on"),
        (9, "/00001", 4, f"{FOURTH}{FULL}rank 1 on"),
        (4, "fenced", None, "attempt 0 may not commit to .* announced attempt 1"),
    ],
)
def test_stop_names_the_newest_checkpoint_that_exists(pair, tmp_path, every, full, resumed, message):
    checkpoints = Checkpoints(str(tmp_path), run="a run")
    checkpoints.fence(0)
    with pytest.raises(Fenced if full == "fenced" else Stopped, match=message):
        pair.gang(StopsAtFive(checkpoints, every, full, resumed))


def checkpointer(folder, every=2, run="a run", **options):
    return Checkpointer(Checkpoints(str(folder / "checkpoints"), run=run), CheckpointInterval.of(every), **options)


def fit(kept, *faults, rows=None, attempt=None, **options):
    training, columns = CASES["SGD"]()
    options = {"checkpointer": kept, "callbacks": [*training.callbacks, *faults]} | options
    attempt = (0 if kept is None else kept.checkpoints.next_attempt()) if attempt is None else attempt
    rows = data() if rows is None else rows
    return InlineCluster().gang(replace(training, **options), rows, columns, attempt=attempt)


def changed_data():
    rows = data()
    rows["x"][5, 0] += 1
    return rows


@pytest.fixture
def taken(tmp_path):
    """Reads the epochs and steps that ``Steps(tmp_path / "seen")`` wrote down."""
    return lambda: (tmp_path / "seen").read_text().split()


def test_same_call_resumes_a_failed_run(tmp_path, taken):
    with pytest.raises(WorkerFailed):
        fit(checkpointer(tmp_path), Fault("fail", 0, 7, str(tmp_path / "mark")))
    assert_alike(fit(checkpointer(tmp_path), Steps(tmp_path / "seen")), fit(None))
    assert taken() == [f"1/{step}" for step in range(7, 11)]


class Shaky(LocalCluster):
    """Two processes, with capacity for one while the second or third epoch is the last saved one."""

    def capacity(self):
        return Capacity(1 if self.checkpoints.epoch() in (2, 3) else 2, 2)


class WaitsAlone:
    """A callback that holds a single worker after its fifth epoch, until its gang ends to grow."""

    def on_epoch(self, run):
        while run.size == 1 and run.clock.epoch == 5:
            record("checkpoint", clock=run.clock, trouble=[], pinned=True)
            time.sleep(0.02)


@pytest.mark.chaos
@pytest.mark.timeout(600)  # three attempts of a gang, two with new processes
def test_gang_of_another_size_resumes_at_the_end_of_an_epoch(pair, tmp_path, taken, monkeypatch):
    def training(batch, *callbacks, **options):
        """Three epochs in float64, which depend on the split into shards by nothing but the rows of a batch."""
        optimizer = partial(torch.optim.Adam, lr=0.1)
        objective = Objective(partial(torch.nn.Linear, 3, 4), torch.nn.CrossEntropyLoss(), optimizer, precision="fp64")
        return replace(Training(objective, batch, 3, seed=1), callbacks=list(callbacks), **options)

    def weights(results):
        return torch.cat([weight.flatten() for weight in merged(results).values()])

    columns, whole = replace(COLUMNS, floating="float64", weight=None), training(144, epochs=7)  # one step an epoch
    saved = checkpointer(tmp_path / "whole", 1, elastic=True)
    callbacks = [Fault("kill", 1, 4, str(tmp_path / "killed")), WaitsAlone()]
    monkeypatch.setattr(elastic, "_POLL_RUNNING", 0.05)
    with Shaky(2, timeout=60) as cluster:
        cluster.checkpoints = saved.checkpoints
        supervisor = Supervisor(cluster, min_size=1, elastic_timeout=0.2, back_off=0, max_restarts=1)
        grown = supervisor.gang(replace(whole, callbacks=callbacks, checkpointer=saved), data(), columns)
    assert (supervisor.sizes, [type(error) for error in supervisor.failures]) == ([2, 1, 2], [WorkerLost])
    assert [row["samples"] for row in grown[0].history] == [144 * epoch for epoch in range(1, 8)]
    assert torch.allclose(weights(grown), weights(pair.gang(whole, data(), columns)), rtol=1e-9, atol=1e-12)

    fault = Fault("kill", 1, 7, str(tmp_path / "mark"))
    saved = checkpointer(tmp_path / "elastic", 1, elastic=True)
    with pytest.raises(WorkerLost):
        pair.gang(training(36, fault, checkpointer=saved), data(), columns, attempt=0)
    resumed = training(36, Steps(tmp_path / "seen"), checkpointer=saved)
    with pytest.warns(RuntimeWarning, match="the gang has 1 workers and had 2"):
        (trained,) = InlineCluster().gang(resumed, data(), columns, attempt=1)
    # The epoch restarts: no row comes twice and none is left out.
    assert taken() == [f"{(step - 1) // 4}/{step}" for step in range(5, 13)]
    assert [row["samples"] for row in trained.history] == [144, 288, 432]


def test_other_rows_in_the_same_fit_restart_the_epoch(tmp_path, taken):
    kept = checkpointer(tmp_path, 1)
    with pytest.raises(WorkerFailed):
        fit(kept, Fault("fail", 0, 7, str(tmp_path / "mark")))
    with pytest.warns(RuntimeWarning, match="the query returned other rows for shard 0"):
        fit(kept, Steps(tmp_path / "seen"), rows=changed_data())
    assert taken() == [f"1/{step}" for step in range(6, 11)]


def test_temporary_directory_that_a_worker_cannot_see_is_a_warning(tmp_path):
    with pytest.warns(RuntimeWarning, match=r"sparkdl saves no checkpoints: .*rank 0 on .* cannot read"):
        fit(checkpointer(tmp_path, 1, token="nobody-announced-it"))
    assert list(tmp_path.iterdir()) == []
    kept = checkpointer(tmp_path, 3, token="announced")
    SharedDirectory(kept.checkpoints.directory, "announced").announce()
    fit(kept, attempt=0)
    assert kept.checkpoints.latest()[1].manifest.clock.step == 9  # of ten: nobody would read the last one


def load(tmp_path, hosts):
    """The errors of two workers that load from their hosts' directories."""

    def worker(rank, all_gather_json):
        world = World(rank, 2, host=f"host{rank}")
        world.all_gather_json = all_gather_json
        try:
            checkpointer(tmp_path / hosts[rank]).load(world, None, {})
        except Exception as error:
            return error

    return together(2, worker)


def test_other_runs_data_attempts_and_directories_raise(tmp_path):
    fit(checkpointer(tmp_path))
    for call, error, message in [
        (lambda: fit(checkpointer(tmp_path, run="another")), InvalidInput, "'a run'.*'another'"),
        (lambda: fit(checkpointer(tmp_path), rows=changed_data()), InvalidInput, "other data: 144 rows, and this run"),
        (lambda: fit(checkpointer(tmp_path), attempt=0), Fenced, "attempt 0"),
    ]:
        with pytest.raises(error, match=message):
            call()
    errors = load(tmp_path, ["", ""])  # attempt 0 again
    assert [type(error) for error in errors] == [Fenced, PeerLost]  # the cause, and its consequence
    for error in load(tmp_path, ["host0", "host1"]):
        assert isinstance(error, InvalidInput)
        assert "rank 1 on host1 cannot read what rank 0 on host0 wrote" in error.message
    assert not list(tmp_path.glob("*/checkpoints/visible-*"))
