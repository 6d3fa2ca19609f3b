"""What members record arrives at the driver, else in the file, else in the count; and it never stops the training."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import pytest

import sparkdl.telemetry.recorder as recorder_module
from sparkdl.errors import InvalidInput
from sparkdl.telemetry.channel import Channel
from sparkdl.telemetry.clock import Clock
from sparkdl.telemetry.emit import record, recording, span
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_reader import read_events
from sparkdl.telemetry.protocol import Connection, Endpoint
from sparkdl.telemetry.recorder import Recorder
from tests.listening import LONG, Seen, Stuck, nothing_left, values

pytestmark = pytest.mark.timeout(60)
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    with nothing_left():
        yield


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def channel(seen: Seen) -> Iterator[Channel]:
    with Channel(seen, session="test") as channel:
        yield channel


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def nobody() -> Endpoint:
    return Endpoint(("127.0.0.1",), free_port(), bytes(32))


# ---- recorders -------------------------------------------------------------------------------------------------


def test_a_recorder_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidInput, match="both"):
        Recorder(nobody(), rank=0, listener=print)
    with pytest.raises(InvalidInput, match="at least 1"):
        Recorder(None, rank=0, capacity=0)


def test_recording_loads_nothing_heavy() -> None:
    code = "import sys, sparkdl.telemetry.emit; print({'torch', 'pyspark', 'pyarrow', 'numpy'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


# ---- members ----------------------------------------------------------------------------------------------------


def member(endpoint: Endpoint, rank: int, count: int) -> None:
    clock = Clock()
    with Recorder(endpoint, rank=rank, attempt=1) as recorder, recording(recorder):
        for index in range(count):
            record("value", clock=clock, value=index)
            clock.tick(8)
        with span("work", clock=clock, rows=count):
            pass


def test_members_in_processes_of_their_own(channel: Channel, seen: Seen) -> None:
    processes = [SPAWN.Process(target=member, args=(channel.endpoint, rank, 300)) for rank in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LONG)
        assert process.exitcode == 0
    assert channel.received == len(seen.events) == 3 * 301  # all are here once the members have ended
    assert channel.refused == 0
    for rank in range(3):
        *steps, last = [event for event in seen.events if event.rank == rank]
        assert values(steps) == list(range(300))
        assert steps[5].clock == {"epoch": 0, "step": 5, "samples": 40}
        assert last.kind == "span"
        assert last.payload.keys() == {"name", "start", "seconds", "rows"}
        assert {event.attempt for event in steps} == {1}


def test_a_large_event_travels(channel: Channel, seen: Seen) -> None:
    with Recorder(channel.endpoint, rank=0) as recorder:
        recorder.record("dump", text="x" * 1_000_000)
        recorder.record("dump", text="x" * 2_000_000)
    first, second = seen.events
    assert len(first.payload["text"]) == 1_000_000
    assert second.payload["truncated"] > 2_000_000


# ---- when the driver is not there -------------------------------------------------------------------------------


def driver(pipe: Pipe) -> None:
    seen = Seen()
    with Channel(seen) as channel:
        pipe.send(channel.endpoint)
        pipe.send(values(seen.wait(1)))
        seen.wait(1 << 30)


def test_a_driver_that_dies_leaves_the_rest_to_the_file(tmp_path: Path) -> None:
    ours, theirs = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=driver, args=(theirs,))
    process.start()
    with closing(ours), closing(theirs):
        endpoint = ours.recv()
        with Recorder(endpoint, rank=3, attempt=1, fallback=tmp_path / "kept") as recorder:
            recorder.record("value", value=0)
            assert ours.recv() == [0]
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join(LONG)
            for value in range(1, 6):
                recorder.record("value", value=value)
    assert recorder.dropped == 0
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["rank-3.attempt-1.jsonl"]
    # No receipt covers the first event, so the file has it as well.
    assert [value for value in values(read_events(tmp_path / "kept")) if value] == [1, 2, 3, 4, 5]


def test_without_a_fallback_what_is_lost_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    with Recorder(nobody(), rank=0) as recorder:
        for value in range(7):
            recorder.record("value", value=value)
    assert recorder.dropped == 7
    recorder.record("late")
    assert recorder.dropped == 8
    assert caplog.text.count("cannot be reached") == 1


def test_a_recorder_finds_its_driver_again(channel: Channel, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkdl.telemetry.recorder.RETRY_SECONDS", (0.0, 0.0))
    with Recorder(channel.endpoint, rank=0) as recorder:
        recorder.record("value", value=0)
        seen.wait(1)
        with channel._server._lock:
            (connection,) = channel._server._connections
            connection.shutdown(socket.SHUT_RDWR)
        for value in range(1, 4):
            recorder.record("value", value=value)
    assert values(seen.events) == [0, 1, 2, 3]
    assert (recorder.told.last, recorder.told.broken, recorder.dropped, channel.refused) == (4, True, 0, 0)


def test_many_events_on_the_way_of_a_connection_that_breaks_leave_a_gap(
    channel: Channel, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the last of them are sent again, and the numbers of the others never come."""
    monkeypatch.setattr("sparkdl.telemetry.recorder.RETRY_SECONDS", (0.0, 0.0))
    many = 3 * recorder_module.BURST_EVENTS
    with Recorder(channel.endpoint, rank=0) as recorder:
        recorder.record("value", value=0)
        assert recorder.flush(LONG)
        sent = recorder_module.Connection.send
        monkeypatch.setattr(recorder_module.Connection, "send", lambda *_: None)  # as into a network that is gone
        for value in range(1, many):
            recorder.record("step", value=value)
        until = time.monotonic() + LONG
        while b'"value":%d}' % (many - 1) not in b"".join(recorder._route._unsure):
            assert time.monotonic() < until
            time.sleep(0.01)
        monkeypatch.setattr(recorder_module.Connection, "send", sent)
        with channel._server._lock:
            (connection,) = channel._server._connections
            connection.shutdown(socket.SHUT_RDWR)
    found = values(seen.events)
    assert found == [0, *range(many - recorder_module.BURST_EVENTS, many)]
    assert recorder.told.last - len(found) == many - 1 - recorder_module.BURST_EVENTS


def test_a_fallback_alone_is_enough(tmp_path: Path) -> None:
    with Recorder(None, rank=0, fallback=tmp_path) as recorder:
        recorder.record("value", value=1)
    assert values(read_events(tmp_path)) == [1]
    assert recorder.dropped == 0


def test_a_fallback_that_cannot_be_written_is_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with Recorder(nobody(), rank=0, fallback=tmp_path / "file") as recorder:
        recorder.record("value", value=1)
    assert recorder.dropped == 1


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    for rank, event in (
        (0, Event("value", 0, 0, 2.0, None, {"value": 2})),
        (1, Event("value", 1, 0, 1.0, None, {"value": 1})),
    ):
        text = event.to_json()
        (tmp_path / f"rank-{rank}.attempt-0.jsonl").write_text(f"{text}\n{text[:30]}")
    with Recorder(None, rank=0, fallback=tmp_path) as recorder:
        recorder.record("value", value=3)
    with pytest.warns(RuntimeWarning, match="line 2 is skipped") as warned:
        assert values(read_events(tmp_path)) == [1, 2, 3]
    assert len(warned) == 2
    assert read_events(tmp_path / "nothing was kept") == []


def test_a_full_queue_drops_and_counts(channel: Channel, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, released, sent = threading.Event(), threading.Event(), recorder_module.Connection.send

    def send(self: Connection, payloads: Sequence[bytes], deadline: float | None = None) -> None:
        entered.set()
        assert released.wait(LONG)
        sent(self, payloads, deadline)

    monkeypatch.setattr(recorder_module.Connection, "send", send)
    with Recorder(channel.endpoint, rank=0, capacity=10) as recorder:
        recorder.record("value", value=-1)
        assert entered.wait(LONG)  # the recorder's thread is busy, and the queue is empty
        for value in range(15):
            recorder.record("value", value=value)
        assert recorder.dropped == 5
        released.set()
        recorder.close(LONG)
    assert values(seen.events) == list(range(-1, 10))
    assert (recorder.told.last, recorder.dropped) == (16, 5)


def test_closing_does_not_wait_for_a_driver_that_hangs(tmp_path: Path) -> None:
    stuck = Stuck()
    with Channel(stuck) as channel:
        recorder = Recorder(channel.endpoint, rank=0, fallback=tmp_path)
        recorder.record("value", value=1)
        assert stuck.entered.wait(LONG)
        recorder.record("value", value=2)
        recorder.close(0.1)
        recorder.close()
        assert values(read_events(tmp_path)) == [1, 2]
        assert not stuck.events
        stuck.released.set()
    assert recorder.dropped == 0


# ---- recording --------------------------------------------------------------------------------------------------


def test_a_listener_can_be_called_directly(seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
    clock, names = Clock(1, 2, 3), ["a"]
    with Recorder(None, rank=4, attempt=5, listener=seen) as recorder:
        recorder.record("value", clock=clock, value=1, kind="of payload", names=names)
        clock.tick(8)
        names.append("b")
    (event,) = seen.events
    assert (event.kind, event.rank, event.attempt) == ("value", 4, 5)
    assert event.clock == {"epoch": 1, "step": 2, "samples": 3}
    assert event.payload == {"value": 1, "kind": "of payload", "names": ["a"]}
    recorder.record("late")
    assert (recorder.dropped, len(seen.events)) == (1, 1)
    with Recorder(None, rank=0, listener=lambda event: 1 // 0) as recorder:  # type: ignore[arg-type]
        recorder.record("value")
        recorder.record("value")
    assert caplog.text.count("ZeroDivisionError") == 1


def test_what_was_recorded_is_settled_once_the_driver_has_had_it() -> None:
    stuck = Stuck()
    with Channel(stuck) as channel, Recorder(channel.endpoint, rank=0) as recorder:
        assert recorder.flush(LONG)  # nothing was recorded
        recorder.record("value", value=1)
        assert stuck.entered.wait(LONG)
        assert not recorder.flush(0.01)
        stuck.released.set()
        assert recorder.flush(LONG)
        assert values(stuck.events) == [1]


@pytest.mark.parametrize("last", ["progress", "the last of a burst", "settle", "close"])
def test_steps_wait_until_somebody_does(
    channel: Channel, seen: Seen, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    monkeypatch.setattr(recorder_module, "LINGER_SECONDS", 10 * LONG)
    steps = recorder_module.BURST_EVENTS if last == "the last of a burst" else 5
    with Recorder(channel.endpoint, rank=0) as recorder:
        recorder.record("started")
        seen.wait(1)
        for number in range(steps - 1):
            recorder.record("step" if number % 2 else "span", value=number)
        assert len(seen.events) == 1
        if last == "settle":
            assert recorder.flush(LONG)
        elif last != "close":
            recorder.record("progress" if last == "progress" else "step", value=steps - 1)
            seen.wait(1 + steps)
    told = [event.payload["value"] for event in seen.events[1:]]
    assert told == list(range(steps if last in ("progress", "the last of a burst") else steps - 1))
    assert recorder.dropped == 0


def test_a_step_that_nothing_follows_is_told_as_well(channel: Channel, seen: Seen) -> None:
    with Recorder(channel.endpoint, rank=0) as recorder:
        recorder.record("step", value=1)
        assert seen.wait(1)[0].payload == {"value": 1}


def test_what_goes_nowhere_is_settled_as_well() -> None:
    with Recorder(nobody(), rank=0) as recorder:
        recorder.record("value", value=1)
        assert recorder.flush(LONG)
        assert recorder.dropped == 1


def test_recording_nests_and_reaches_threads() -> None:
    outer, inner = Seen(), Seen()
    record("nobody listens", value=0)
    with Recorder(None, rank=0, listener=outer) as first, Recorder(None, rank=1, listener=inner) as second:
        with recording(first):
            with recording(second):
                thread = threading.Thread(target=record, args=("value",), kwargs={"value": 1})
                thread.start()
                thread.join(LONG)
            record("value", value=2)
            with recording(None):
                record("value", value=3)
        record("value", value=4)
    assert (values(inner.events), values(outer.events)) == ([1], [2])


def test_spans(seen: Seen) -> None:
    clock = Clock()

    @span("function", of="tests")
    def work(value: int) -> int:
        return value + 1

    assert work(1) == 2
    with Recorder(None, rank=0, listener=seen) as recorder, recording(recorder):
        assert work(1) + work(2) == 5
        with span("block", clock=clock, name="taken"):
            clock.tick(8)
        with pytest.raises(KeyError), span("fails"):
            raise KeyError
    assert {event.kind for event in seen.events} == {"span"}
    assert [event.payload["name"] for event in seen.events] == ["function", "function", "block", "fails"]
    assert seen.events[0].payload["of"] == "tests"
    assert seen.events[2].clock == {"epoch": 0, "step": 0, "samples": 0}
    assert seen.events[3].payload["error"] == "KeyError"
    assert all(event.payload["seconds"] >= 0 and event.payload["start"] > 0 for event in seen.events)


def test_a_forked_child_records_nothing(seen: Seen) -> None:
    with Recorder(None, rank=0, listener=seen) as recorder, recording(recorder):
        child = os.fork()
        if not child:
            record("value", value=1)
            os._exit(len(seen.events))
        _, status = os.waitpid(child, 0)
        record("value", value=2)
    assert os.waitstatus_to_exitcode(status) == 0
    assert values(seen.events) == [2]
