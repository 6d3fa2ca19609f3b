"""A worker takes part in its gang, always returns a result or a failure, and restores the process."""

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
from sparkdl.cluster.group.world import in_a_group
from sparkdl.cluster.worker import WorkerTask, run_worker
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import ErrorContext, PeerLost
from sparkdl.telemetry.emit import record
from sparkdl.telemetry.event import Event
from tests.contracts import work

X = Columns((InputColumn("x"),), row_id=InputColumn("id"))
SOUR = ValueError("sour")


def worker(does: Callable[..., Any] | bytes, batches: Any = (), columns: Any = None, **options: Any) -> WorkerResult:
    """The only worker of a gang, in this process."""
    exchange, listener = options.pop("exchange", lambda line: [line]), options.pop("listener", None)
    task = WorkerTask(does if isinstance(does, bytes) else cloudpickle.dumps(does), 1, "run", 2, columns, **options)
    return run_worker(task, 0, "127.0.0.1", exchange, batches, listener=listener)


def table(rows: int) -> list[pa.RecordBatch]:
    ids = np.random.default_rng(0).permutation(rows)
    return pa.table({"x": ids / 2, "id": ids}).to_batches(max_chunksize=10)


def counted(batches: list[pa.RecordBatch], read: list[Any]) -> Iterator[pa.RecordBatch]:
    """Batches that are listed in ``read`` as they are read, and their end."""
    for batch in batches:
        read.append(batch)
        yield batch
    read.append("end")


def test_value_comes_back_with_seconds_of_each_stage():
    outcome = worker(work.rows, table(25), X)
    assert outcome.failure is None
    assert set(outcome.seconds) == {"feed", "join", "work", "result"}
    assert all(seconds >= 0 for seconds in outcome.seconds.values())
    columns = cloudpickle.loads(outcome.value)["columns"]
    np.testing.assert_array_equal(columns["id"], np.arange(25))  # in the order of their ids
    np.testing.assert_array_equal(columns["x"], np.arange(25) / 2)


@pytest.mark.parametrize(
    ("does", "batches", "columns", "stage", "kind"),
    [
        (work.Fails(0, SOUR), (), None, "work", "ValueError"),
        (work.Fails(0, SystemExit(3)), (), None, "work", "SystemExit"),
        (b"no pickle", (), None, "work", "UnpicklingError"),
        (work.a_lock, (), None, "result", "TypeError"),
        (work.rows, [pa.record_batch({"x": [np.inf], "id": [0]})], X, "feed", "InvalidInput"),
        (work.rows, [pa.record_batch({"x": [1.0, 2.0], "id": [0, 0]})], X, "feed", "InvalidInput"),
        (work.rows, [], X, "feed", "InvalidInput"),
    ],
)
def test_failure_has_its_place(does, batches, columns, stage, kind):
    outcome = worker(does, batches, columns)
    assert outcome.value is None
    assert outcome.failure.kind == kind
    assert outcome.failure.place == ErrorContext(stage, 0, socket.gethostname(), 2, 0 if stage == "work" else None)
    assert not outcome.failure.peer


def test_failed_rendezvous_is_failure():
    def exchange(line: str) -> list[str]:
        raise PeerLost("another worker failed before the rendezvous.")

    read: list[Any] = []
    outcome = worker(work.who, counted(table(25), read), X, exchange=exchange)
    assert (outcome.failure.place.stage, outcome.failure.peer) == ("join", True)
    assert read[-1] == "end"


@pytest.mark.parametrize("columns", [X, None])
@pytest.mark.parametrize("bad", [True, False])
def test_partition_is_read_to_its_end(columns, bad):
    first, *others = table(60)
    batches = [first, *[pa.record_batch({"x": [np.nan], "id": [99]})] * bad, *others]
    read: list[Any] = []
    outcome = worker(work.who, counted(batches, read), columns)
    assert (outcome.failure is not None) == (bad and columns is not None)
    assert len(read) == len(batches) + 1
    assert read[-1] == "end"


@pytest.mark.parametrize("does", [work.make_a_mess, work.Fails(0, SOUR), work.Fails(0, SystemExit(3))])
def test_process_is_restored(does, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "outer.invalid")
    monkeypatch.delenv("RANK", raising=False)
    before = dict(os.environ), torch.get_num_threads(), set(threading.enumerate())
    worker(does, threads=before[1] + 1)
    assert (dict(os.environ), torch.get_num_threads(), set(threading.enumerate())) == before
    assert not in_a_group()
    record("after", value=1)  # to nobody: the recorder of the gang is gone


@pytest.mark.parametrize("threads", [3, None])
def test_number_of_threads(threads):
    found = cloudpickle.loads(worker(work.who, threads=threads).value)["threads"]
    assert found == (threads or torch.get_num_threads())


def test_failure_releases_objects_of_its_traceback():
    held: list[weakref.ref[torch.nn.Module]] = []

    def fails():
        module = torch.nn.Linear(2, 2)
        held.append(weakref.ref(module))
        try:
            module(torch.zeros(3))
        except RuntimeError as error:
            raise ValueError("shapes") from error

    try:
        fails()
    except ValueError as error:
        failure = Failure.of(error, ErrorContext("work"))
    assert failure.kind == "ValueError"
    assert "shapes cannot be multiplied" in failure.trace
    assert held[0]() is None


def test_events_of_a_worker():
    events: list[Event] = []
    worker(work.noted, listener=events.append)
    kinds = [event.kind for event in events]
    assert (kinds[0], kinds[-1], kinds.count("noted")) == ("started", "finished", 3)
    stages = [event.payload["name"] for event in events if event.kind == "span"]
    assert stages == ["feed", "join", "join", "work", "result"]
    assert events[0].payload == {"pid": os.getpid(), "host": socket.gethostname()}
    assert {(event.rank, event.attempt) for event in events} == {(0, 2)}
