"""A worker's events arrive at the driver, else in the file, else in the count; and recording never stops training."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time

import pytest

import sparkdl.telemetry.recorder as recorder_module
from sparkdl.data.clock import Clock
from sparkdl.telemetry.channel import Channel
from sparkdl.telemetry.emit import record, recording, span
from sparkdl.telemetry.event_reader import read_events
from sparkdl.telemetry.recorder import Recorder
from sparkdl.telemetry.step_timer import end_step, enter_phase
from sparkdl.telemetry.task_recorder import Reporting
from tests.listening import LONG, Seen, Stuck, nobody, values

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("nothing_is_left")]


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("sparkdl.telemetry.emit", {"torch", "pyspark", "pyarrow", "numpy"}),
        ("sparkdl.report, sparkdl.telemetry.bottlenecks", {"plotly", "jinja2", "torch", "pyspark"}),
    ],
)
def test_import_loads_nothing_heavy(modules, heavy):
    code = f"import sys, {modules}; print({heavy} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_events_of_workers_arrive_in_order_and_one_at_a_time(nothing_is_left, seen):
    lock, overlaps = threading.Lock(), []

    def listener(event):
        if not lock.acquire(blocking=False):
            overlaps.append(event)
            return
        time.sleep(0.001)
        seen(event)
        lock.release()

    with Channel(listener) as channel:
        with Recorder(channel.endpoint, rank=0) as first, Recorder(channel.endpoint, rank=1) as second:
            for value in range(100):
                for recorder in (first, second):
                    recorder.record("value", value=value)
        assert channel.received == len(seen.events) == 2 * 100  # all are here once the recorders are closed
        assert (channel.refused, overlaps) == (0, [])
    for rank in range(2):
        assert values([event for event in seen.events if event.rank == rank]) == list(range(100))


# ---- without a driver -------------------------------------------------------------------------------------------


def test_after_end_of_driver_events_go_to_file(seen, tmp_path):
    with Channel(seen) as channel:
        recorder = Recorder(channel.endpoint, rank=3, attempt=1, fallback=tmp_path / "kept")
        recorder.record("value", value=0)
        seen.wait(1)
    for value in range(1, 6):
        recorder.record("value", value=value)
    recorder.close()
    assert recorder.counts.dropped == 0
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["rank-3.attempt-1.jsonl"]
    # No receipt covers the first event, so the file has it as well.
    assert [value for value in values(read_events(tmp_path / "kept")) if value] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("blocked", [False, True], ids=["without fallback", "fallback cannot be written"])
def test_lost_events_are_counted(blocked, tmp_path, caplog):
    (tmp_path / "file").touch()
    with Recorder(nobody(), rank=0, fallback=tmp_path / "file" if blocked else None) as recorder:
        recorder.record("value", value=0)
        assert recorder.flush(LONG)
        for value in range(6):
            recorder.record("value", value=value)
    recorder.record("late")
    assert recorder.counts.dropped == 8
    assert blocked or caplog.text.count("cannot be reached") == 1


def test_broken_connection_resends_last_burst_and_leaves_gap_in_numbers(channel, seen, monkeypatch):
    monkeypatch.setattr(recorder_module, "RETRY_SECONDS", (0.0, 0.0))
    many = 3 * recorder_module.BURST_EVENTS
    with Recorder(channel.endpoint, rank=0) as recorder:
        recorder.record("value", value=0)
        assert recorder.flush(LONG)
        with monkeypatch.context() as patch:
            patch.setattr(recorder_module.Connection, "send", lambda *_: None)  # as into a network that is gone
            for value in range(1, many):
                recorder.record("step", value=value)
            until = time.monotonic() + LONG
            while b'"value":%d}' % (many - 1) not in b"".join(recorder._route._unconfirmed):
                assert time.monotonic() < until
                time.sleep(0.01)
        with channel._lock:
            (connection,) = channel._connections
            connection.shutdown(socket.SHUT_RDWR)
    assert values(seen.events) == [0, *range(many - recorder_module.BURST_EVENTS, many)]
    counts = recorder.counts
    assert (counts.last, counts.broken, counts.dropped, channel.refused) == (many, True, 0, 0)


def test_full_queue_drops_and_counts(channel, seen, monkeypatch):
    entered, released, send = threading.Event(), threading.Event(), recorder_module.Connection.send

    def blocked(*arguments):
        entered.set()
        assert released.wait(LONG)
        send(*arguments)

    monkeypatch.setattr(recorder_module.Connection, "send", blocked)
    monkeypatch.setattr(recorder_module, "CAPACITY", 10)
    with Recorder(channel.endpoint, rank=0) as recorder:
        recorder.record("value", value=-1)
        assert entered.wait(LONG)  # the recorder's thread is busy, and the queue is empty
        for value in range(15):
            recorder.record("value", value=value)
        assert recorder.counts.dropped == 5
        released.set()
        recorder.close(LONG)
    assert values(seen.events) == list(range(-1, 10))
    assert (recorder.counts.last, recorder.counts.dropped) == (16, 5)


def test_close_does_not_wait_for_hanging_driver(tmp_path):
    stuck = Stuck()
    with Channel(stuck) as channel:
        recorder = Recorder(channel.endpoint, rank=0, fallback=tmp_path)
        assert recorder.flush(LONG)  # nothing was recorded
        recorder.record("value", value=1)
        assert stuck.entered.wait(LONG)
        assert not recorder.flush(0.01)
        recorder.record("value", value=2)
        recorder.close(0.1)
        recorder.close()
        assert values(read_events(tmp_path)) == [1, 2]
        assert not stuck.events
        stuck.released.set()
    assert recorder.counts.dropped == 0


# ---- recording --------------------------------------------------------------------------------------------------


def test_listener_is_called_directly(seen):
    clock, names = Clock(1, 2, 3), ["a"]
    with Recorder(None, rank=4, attempt=5, listener=seen) as recorder:
        recorder.record("value", clock=clock, value=1, kind="of payload", names=names)
        clock.tick(8)
        names.append("b")
    recorder.record("late")
    (event,) = seen.events
    assert (event.kind, event.rank, event.attempt) == ("value", 4, 5)
    assert event.clock == {"epoch": 1, "step": 2, "samples": 3}
    assert event.payload == {"value": 1, "kind": "of payload", "names": ["a"]}
    assert recorder.counts.dropped == 1


@pytest.mark.parametrize("last", ["progress", "full burst", "flush", "close"])
def test_steps_wait_for_urgent_event(channel, seen, monkeypatch, last):
    monkeypatch.setattr(recorder_module, "LINGER_SECONDS", 10 * LONG)
    steps = recorder_module.BURST_EVENTS if last == "full burst" else 5
    with Recorder(channel.endpoint, rank=0) as recorder:
        recorder.record("started")
        seen.wait(1)
        for number in range(steps - 1):
            recorder.record("step" if number % 2 else "span", value=number)
        assert len(seen.events) == 1
        if last == "flush":
            assert recorder.flush(LONG)
        elif last != "close":
            recorder.record("progress" if last == "progress" else "step", value=steps - 1)
            seen.wait(1 + steps)
    sent = steps if last in ("progress", "full burst") else steps - 1
    assert values(seen.events[1:]) == list(range(sent))
    assert recorder.counts.dropped == 0


def test_lone_step_is_sent_after_linger(channel, seen):
    with Recorder(channel.endpoint, rank=0) as recorder:
        recorder.record("step", value=1)
        assert values(seen.wait(1)) == [1]


def test_recording_nests_and_reaches_threads():
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


def test_spans(seen):
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
    assert [event.payload["name"] for event in seen.events] == ["function", "function", "block", "fails"]
    assert seen.events[0].payload["of"] == "tests"
    assert seen.events[2].clock == {"epoch": 0, "step": 0, "samples": 0}
    assert seen.events[3].payload["error"] == "KeyError"
    assert all(event.payload["seconds"] >= 0 and event.payload["start"] > 0 for event in seen.events)


def test_forked_child_records_nothing(seen):
    with Recorder(None, rank=0, listener=seen) as recorder, recording(recorder):
        child = os.fork()
        if not child:
            record("value", value=1)
            os._exit(len(seen.events))
        _, status = os.waitpid(child, 0)
        record("value", value=2)
    assert os.waitstatus_to_exitcode(status) == 0
    assert values(seen.events) == [2]


# ---- tasks ---------------------------------------------------------------------------------------------------------


def test_events_have_index_and_attempt_of_task(channel, seen):
    with Reporting().task("map", 0) as counts:  # without a destination
        record("hello")
    assert counts.last == 0
    with Reporting(channel.endpoint, number=7).task("map", 3, 2):
        record("hello", clock=Clock(1, 2, 3))
        enter_phase("forward")
        end_step(rows=5)
    with pytest.raises(LookupError), Reporting(listener=seen).task("map", 3, 2):
        raise LookupError
    assert {(event.rank, event.attempt) for event in seen.events} == {(3, 2)}
    assert [event.kind for event in seen.events] == ["hello", "step", "step", "span", "span"]
    assert (seen.events[3].payload["name"], seen.events[3].payload["round"]) == ("map", 7)
    assert seen.events[-1].payload["error"] == "LookupError"


def test_silent_driver_is_asked_once(tmp_path, monkeypatch):
    asked = []

    def refuse(address, *_):
        asked.append(address)
        raise ConnectionError("nobody")

    monkeypatch.setattr(recorder_module.Connection, "open", refuse)
    endpoint = nobody()
    for index in range(5):
        with Reporting(endpoint, str(tmp_path)).task("map", index):
            record("hello")
    assert asked == ["127.0.0.1"]
    assert sorted(event.rank for event in read_events(tmp_path) if event.kind == "hello") == [0, 1, 2, 3, 4]
