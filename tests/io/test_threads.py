"""Calls in background threads."""

import threading
from functools import partial

import pytest

from sparkdl.io import threads
from sparkdl.io.threads import BackgroundQueue, in_background

LONG = 30


def fail(kind):
    raise kind("no such thing")


def test_call_runs_in_a_named_daemon_thread_and_result_raises_its_error():
    go = threading.Event()
    answer = in_background(lambda: go.wait(LONG) and threading.current_thread(), "a name")
    assert not answer.done()
    go.set()
    assert (answer.result(LONG).name, answer.result().daemon) == ("a name", True)
    for kind in (LookupError, KeyboardInterrupt, SystemExit):
        with pytest.raises(kind, match="no such thing"):
            in_background(partial(fail, kind), "fails").result(LONG)


@pytest.fixture
def slow():
    """The event that lets items pass, the event that one has begun, the items seen, and the function."""
    go, begun, items = threading.Event(), threading.Event(), []

    def call(item):
        begun.set()
        assert go.wait(LONG)
        items.append(item)

    return go, begun, items, call


def test_close_waits_for_queued_items_and_counts_lost_ones(slow):
    go, begun, items, call = slow
    queue = BackgroundQueue(call, "slow", 3)
    assert not queue.busy
    queue.put(0)
    assert begun.wait(LONG)
    for number in range(1, 10):
        queue.put(number)
    assert queue.busy
    assert (queue.lost, items) == (6, [])
    go.set()
    queue.close()
    queue.put(10)
    assert (queue.lost, items) == (7, [0, 1, 2, 3])
    assert not queue.busy


def test_close_gives_up_and_drops_the_rest(slow, monkeypatch, caplog):
    monkeypatch.setattr(threads, "CLOSING", 0.1)
    go, begun, items, call = slow
    queue = BackgroundQueue(call, "slow")
    for number in range(5):
        queue.put(number)
    assert begun.wait(LONG)
    queue.close()
    assert "slow does not end within 0.1 s; 4 waiting items are dropped" in caplog.text
    assert queue.lost == 4
    go.set()
    queue._thread.join(LONG)
    assert items == [0]
