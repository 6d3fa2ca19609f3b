"""A worker takes part in its gang, always returns a result or a failure, and restores the process."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl.cluster.failure import WorkerResult
from sparkdl.cluster.group.rendezvous import in_a_group
from sparkdl.cluster.group.world import World
from sparkdl.cluster.worker import WorkerTask, run_worker
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import ErrorContext, PeerLost
from sparkdl.telemetry.channel import Channel
from sparkdl.telemetry.emit import record
from sparkdl.telemetry.event import Event
from tests.contracts import work

X = Columns((InputColumn("x"),), row_id=InputColumn("id"))
SOUR = ValueError("sour")


def worker(does: Callable[..., Any] | bytes, batches: Any = (), columns: Any = None, **options: Any) -> WorkerResult:
    """The only worker of a gang, in this process."""
    all_gather, listener = options.pop("all_gather", lambda line: [line]), options.pop("listener", None)
    task = WorkerTask(does if isinstance(does, bytes) else cloudpickle.dumps(does), 1, "run", 2, columns, **options)
    return run_worker(task, 0, "127.0.0.1", all_gather, batches, listener=listener)


def table(rows: int) -> list[pa.RecordBatch]:
    ids = np.random.default_rng(0).permutation(rows)
    return pa.table({"x": ids / 2, "id": ids}).to_batches(max_chunksize=10)


def counted(batches: list[pa.RecordBatch], read: list[Any]) -> Iterator[pa.RecordBatch]:
    """Batches that are listed in ``read`` as they are read, and their end."""
    for batch in batches:
        read.append(batch)
        yield batch
    read.append("end")


@pytest.mark.parametrize(
    ("does", "batches", "columns", "stage", "kind"),
    [
        (work.Fails(0, SOUR), (), None, "work", "ValueError"),
        (work.Fails(0, SystemExit(3)), (), None, "work", "SystemExit"),
        (b"no pickle", (), None, "work", "UnpicklingError"),
        (work.rows, [pa.record_batch({"x": [1.0, 2.0], "id": [0, 0]})], X, "feed", "InvalidInput"),
        (work.rows, [], X, "feed", "InvalidInput"),
    ],
)
def test_failure_has_its_place(does, batches, columns, stage, kind):
    result = worker(does, batches, columns)
    assert result.value is None
    assert result.failure.kind == kind
    assert result.failure.context == ErrorContext(stage, 0, socket.gethostname(), 2, 0 if stage == "work" else None)
    assert not result.failure.peer


def test_failed_rendezvous_is_failure():
    def all_gather(line: str) -> list[str]:
        raise PeerLost("another worker failed before the rendezvous.")

    read: list[Any] = []
    result = worker(work.who, counted(table(25), read), X, all_gather=all_gather)
    assert (result.failure.context.stage, result.failure.peer) == ("join", True)
    assert read[-1] == "end"


@pytest.mark.parametrize("columns", [X, None])
@pytest.mark.parametrize("bad", [True, False])
def test_partition_is_read_to_its_end(columns, bad):
    first, *later = table(60)
    batches = [first, *[pa.record_batch({"x": [np.nan], "id": [99]})] * bad, *later]
    read: list[Any] = []
    result = worker(work.who, counted(batches, read), columns)
    assert (result.failure is not None) == (bad and columns is not None)
    assert len(read) == len(batches) + 1
    assert read[-1] == "end"


@pytest.mark.parametrize("does", [work.make_a_mess, work.Fails(0, SOUR), work.Fails(0, SystemExit(3))])
def test_process_is_restored(does, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "outer.invalid")
    monkeypatch.delenv("RANK", raising=False)
    before = dict(os.environ), torch.get_num_threads(), set(threading.enumerate())
    value = worker(does, threads=before[1] + 1).value
    assert (value is None) == isinstance(does, work.Fails)
    if value is not None:
        worker_saw = cloudpickle.loads(value)
        assert (worker_saw["variables"]["MASTER_ADDR"], worker_saw["threads"]) == (None, before[1] + 1)
    assert (dict(os.environ), torch.get_num_threads(), set(threading.enumerate())) == before
    assert not in_a_group()
    record("after", value=1)  # to nobody: the recorder of the gang is gone


def test_bad_rows_are_reported_even_if_peers_have_left(monkeypatch):
    def unreachable(world: World, key: str, value: dict[str, Any]) -> None:
        raise PeerLost("another worker is unreachable")

    monkeypatch.setattr(World, "all_gather_json", unreachable)
    failure = worker(work.who, [pa.record_batch({"x": [np.nan], "id": [0]})], X).failure
    assert (failure.kind, failure.context.stage, failure.peer) == ("InvalidInput", "feed", False)


def test_stages_of_a_worker_have_seconds_and_events():
    events: list[Event] = []
    result = worker(work.noted, table(25), X, listener=events.append)
    assert result.failure is None
    assert set(result.seconds) == {"feed", "join", "work", "result"}
    assert all(seconds >= 0 for seconds in result.seconds.values())
    kinds = [event.kind for event in events]
    assert (kinds[0], kinds[-1], kinds.count("noted")) == ("started", "finished", 3)
    stages = [event.payload["name"] for event in events if event.kind == "span"]
    assert stages == ["feed", "join", "join", "feed", "work", "result"]
    assert events[0].payload == {"pid": os.getpid(), "host": socket.gethostname()}
    assert {(event.rank, event.attempt) for event in events} == {(0, 2)}


def test_first_heartbeat_is_delivered_before_rows_are_read():
    # The monitor ignores workers without a heartbeat, so a worker that stopped in its first batch was never missed.
    reading, received, before = threading.Event(), [], []

    def listen(event: Event) -> None:
        reading.wait(0.3)  # a busy driver
        received.append(event.kind)

    def batches() -> Iterator[pa.RecordBatch]:
        before.extend(received)
        reading.set()
        yield from table(1)

    with Channel(listen) as channel:
        worker(work.who, batches(), X, endpoint=channel.endpoint, heartbeat=10.0)
    assert before == ["started", "heartbeat"]
