"""A call beside whatever comes next."""

from __future__ import annotations

import threading

import pytest

from sparkdl.io.threads import in_background


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
