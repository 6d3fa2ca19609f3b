"""A member takes part in its gang, and whatever happens it comes back with an account of it."""

from __future__ import annotations

import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl.cluster.failure import Failure, WorkerResult
from sparkdl.cluster.group.network import Address
from sparkdl.cluster.group.rendezvous import RendezvousSpec
from sparkdl.cluster.group.world import in_a_group
from sparkdl.cluster.worker import WorkerTask, run_worker
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import ErrorContext, PeerLost
from sparkdl.telemetry.emit import record
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_reader import read_events
from tests.contracts import work

X = Columns((InputColumn("x"),), row_id=InputColumn("id"))


def member(does: Callable[..., Any], batches: Any = (), columns: Columns | None = None, **options: Any) -> WorkerResult:
    """The only member of a gang, in this process."""
    exchange = options.pop("exchange", lambda line: [line])
    listener = options.pop("listener", None)
    task = WorkerTask(cloudpickle.dumps(does), 1, "run", 2, columns, **options)
    return run_worker(task, RendezvousSpec(0, 1, "run", 2, Address("127.0.0.1")), exchange, batches, listener=listener)


def table(rows: int, batch_rows: int = 10) -> list[pa.RecordBatch]:
    ids = np.random.default_rng(0).permutation(rows)
    return pa.table({"x": ids / 2, "id": ids}).to_batches(max_chunksize=batch_rows)


class Read:
    """Batches that are counted as they are read."""

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        self.batches, self.count, self.ended = batches, 0, False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self.batches:
            self.count += 1
            yield batch
        self.ended = True


# ---- what comes back --------------------------------------------------------------------------------------------


def test_a_value_comes_back_pickled_with_the_time_each_stage_took():
    outcome = member(lambda world, part: {"rows": part.rows, "attempt": world.attempt}, table(25), X)
    assert cloudpickle.loads(outcome.value) == {"rows": 25, "attempt": 2}
    assert outcome.failure is None
    assert set(outcome.seconds) == {"feed", "join", "work", "result"}
    assert all(seconds >= 0 for seconds in outcome.seconds.values())


def test_rows_are_in_the_order_of_their_ids():
    outcome = member(work.rows, table(25), X)
    np.testing.assert_array_equal(cloudpickle.loads(outcome.value)["columns"]["id"], np.arange(25))
    np.testing.assert_array_equal(cloudpickle.loads(outcome.value)["columns"]["x"], np.arange(25) / 2)


@pytest.mark.parametrize(
    ("does", "batches", "columns", "stage", "kind"),
    [
        (work.Fails(0, ValueError("sour")), (), None, "work", "ValueError"),
        (work.Fails(0, SystemExit(3)), (), None, "work", "SystemExit"),
        (work.a_lock, (), None, "result", "TypeError"),
        (work.rows, [pa.record_batch({"x": [np.inf], "id": [0]})], X, "feed", "InvalidInput"),
        (work.rows, [pa.record_batch({"x": [1.0, 2.0], "id": [0, 0]})], X, "feed", "InvalidInput"),
        (work.rows, [], X, "feed", "InvalidInput"),
    ],
)
def test_a_failure_says_where(does, batches, columns, stage, kind):
    outcome = member(does, batches, columns)
    assert outcome.value is None
    assert outcome.failure.kind == kind
    assert outcome.failure.place == ErrorContext(stage, 0, socket.gethostname(), 2, 0 if stage == "work" else None)
    assert not outcome.failure.peer


def test_work_that_cannot_be_unpickled_is_a_failure():
    task = WorkerTask(b"no pickle", 1, "run")
    outcome = run_worker(task, RendezvousSpec(0, 1, "run", 0, Address("127.0.0.1")), lambda line: [line], ())
    assert outcome.failure.place.stage == "work"


def test_the_others_that_cannot_be_met_are_a_failure():
    def exchange(line: str) -> list[str]:
        raise PeerLost("another member failed before the gang had met.")

    batches = Read(table(25))
    outcome = member(work.who, batches, X, exchange=exchange)
    assert (outcome.failure.place.stage, outcome.failure.peer) == ("join", True)
    assert batches.ended


@pytest.mark.parametrize("columns", [X, None])
@pytest.mark.parametrize("bad", [True, False])
def test_the_partition_is_read_to_its_end(columns, bad):
    good = table(60)
    wrong = pa.record_batch({"x": [np.nan], "id": [99]})
    batches = Read([good[0], wrong, *good[1:]] if bad else good)
    outcome = member(work.who, batches, columns)
    assert (outcome.failure is not None) == (bad and columns is not None)
    assert batches.ended
    assert batches.count == len(good) + bad


# ---- what it leaves behind --------------------------------------------------------------------------------------


@pytest.mark.parametrize("does", [work.make_a_mess, work.Fails(0, ValueError("sour")), work.Fails(0, SystemExit(3))])
def test_the_process_is_set_back(does, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "outer.invalid")
    monkeypatch.delenv("RANK", raising=False)
    before = dict(os.environ), torch.get_num_threads()
    threads = set(threading.enumerate())
    member(does, threads=before[1] + 1)
    assert (dict(os.environ), torch.get_num_threads()) == before
    assert not in_a_group()
    assert set(threading.enumerate()) == threads
    record("after", value=1)  # to nobody: the recorder of the gang is gone


def test_threads_are_as_many_as_were_given():
    assert cloudpickle.loads(member(work.who, threads=3).value)["threads"] == 3
    assert cloudpickle.loads(member(work.who).value)["threads"] == torch.get_num_threads()


def test_an_error_lets_go_of_what_its_traceback_holds():
    held: list[weakref.ref[torch.nn.Module]] = []

    def does(world, part):
        module = torch.nn.Linear(2, 2)
        held.append(weakref.ref(module))
        try:
            module(torch.zeros(3))
        except RuntimeError as error:
            raise ValueError("shapes") from error

    failure = failed(does)
    assert failure.kind == "ValueError"
    assert "shapes cannot be multiplied" in failure.trace
    assert held[0]() is None


def failed(does: Callable[..., Any]) -> Failure:
    try:
        does(None, None)
    except BaseException as error:
        return Failure.of(error, ErrorContext("work"))
    raise AssertionError("it did not fail")


def sour(world: Any, part: Any) -> None:
    raise ValueError("sour")


# ---- events -----------------------------------------------------------------------------------------------------


def test_events_begin_with_where_the_member_is():
    events: list[Event] = []
    member(work.noted, listener=events.append)
    kinds = [event.kind for event in events]
    assert (kinds[0], kinds[-1], kinds.count("noted")) == ("started", "finished", 3)
    stages = [event.payload["name"] for event in events if event.kind == "span"]
    assert stages == ["feed", "join", "join", "work", "result"]
    assert events[0].payload == {"pid": os.getpid(), "host": socket.gethostname()}
    assert {(event.rank, event.attempt) for event in events} == {(0, 2)}


def test_events_that_nobody_can_take_are_kept(tmp_path):
    member(work.Fails(0, ValueError("sour"), step=7), fallback=str(tmp_path))
    started, *stages, failure = read_events(tmp_path)
    assert started.kind == "started"
    assert [(each.payload["name"], each.payload.get("error")) for each in stages][-1] == ("work", "ValueError")
    assert Failure.from_json(failure.payload).message == "sour"
    assert Failure.from_json(failure.payload).place.step == 7
