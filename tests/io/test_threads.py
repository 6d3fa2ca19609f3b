"""Calls in threads of their own."""

from __future__ import annotations

import threading

import pytest

from sparkdl.io import threads
from sparkdl.io.threads import BackgroundQueue, in_background


def test_it_goes_on_beside_and_says_what_came_of_it() -> None:
    go = threading.Event()
    answer = in_background(lambda: go.wait(60) and threading.current_thread().name, "a name")
    assert not answer.done()
    go.set()
    assert answer.result(60) == "a name"


@pytest.mark.parametrize("kind", [LookupError, KeyboardInterrupt, SystemExit])
def test_what_it_raises_is_raised_by_who_waits(kind: type[BaseException]) -> None:
    def fails() -> None:
        raise kind("no such thing")

    with pytest.raises(kind, match="no such thing"):
        in_background(fails, "fails").result(60)


def test_it_does_not_keep_the_process_alive() -> None:
    running = threading.Event()
    ends = threading.Event()
    in_background(lambda: (running.set(), ends.wait(60)), "waits")
    assert running.wait(60)
    [thread] = [each for each in threading.enumerate() if each.name == "waits"]
    assert thread.daemon
    ends.set()


def test_what_is_beside_is_not_waited_for_until_the_end() -> None:
    go, seen = threading.Event(), []

    def slow(number: int) -> None:
        assert go.wait(30)
        seen.append(number)

    aside = BackgroundQueue(slow, "slow")
    assert not aside.busy
    for number in range(100):
        aside.put(number)
    assert aside.busy
    assert not seen
    go.set()
    aside.close()
    assert seen == list(range(100))
    assert not aside.busy


def test_what_a_queue_has_no_room_for_is_counted() -> None:
    go, begun = threading.Event(), threading.Event()

    def slow(_: int) -> None:
        begun.set()
        assert go.wait(30)

    aside = BackgroundQueue(slow, "slow", 3)
    aside.put(0)
    assert begun.wait(30)
    for number in range(1, 10):
        aside.put(number)
    assert aside.lost == 6
    go.set()
    aside.close()
    aside.put(10)
    assert aside.lost == 7


def test_the_end_does_not_wait_for_ever_and_nothing_follows_it(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.setattr(threads, "CLOSING", 0.1)
    go, begun, seen = threading.Event(), threading.Event(), []

    def slow(number: int) -> None:
        seen.append(number)
        begun.set()
        go.wait(30)

    aside = BackgroundQueue(slow, "slow")
    for number in range(5):
        aside.put(number)
    assert begun.wait(30)
    aside.close()
    assert "slow does not end; 4 still wait for it, and are left out" in caplog.text
    assert aside.lost == 4
    go.set()
    aside._thread.join(30)
    assert seen == [0]
