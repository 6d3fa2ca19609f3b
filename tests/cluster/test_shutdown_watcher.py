"""If the process is asked to stop, a running gang saves and ends, or is cancelled. Real drivers: tests/cli."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.local import LocalCluster
from sparkdl.cluster.shutdown import forget_stop, request_stop
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import Fenced, InvalidInput, Stopped, WorkerLost
from sparkdl.telemetry.event import Event
from tests.cluster.scripted import Scripted


@pytest.fixture(autouse=True)
def forget():
    yield
    forget_stop()


class Asked(Scripted):
    """A cluster whose gang runs until it is asked to stop or cancelled, and then ends with ``ending``."""

    def __init__(self, ending: Any = None, *, waits: bool = False) -> None:
        super().__init__(self.run)
        self.ending, self.waits = ending, waits
        self.asked: list[int] = []
        self._moved = threading.Event()

    def ask(self, attempt: int) -> None:
        self.asked.append(attempt)
        if self.ending is not None:
            self._moved.set()

    def run(self, listener, attempt, guard):
        with guard.stopping(self._moved.set):
            if self.waits:
                listener(Event("waiting", -1, attempt, time.time(), None, {"what": "slots", "seconds": 2.0}))
            request_stop("maintenance")
            assert self._moved.wait(60)
            if isinstance(self.ending, Exception):
                raise self.ending
            if self.ending is None:
                raise ConnectionError("the job was cancelled")
            return self.ending


def stop(cluster: Any, limit: float = 60.0, **options: Any) -> Any:
    supervisor = Supervisor(cluster, back_off=0, **options)
    supervisor.stop_limit = limit
    return supervisor.gang(print, attempt=4)


def disk_full(attempt: int) -> None:
    raise OSError("No space left on device")


@pytest.mark.parametrize(
    ("cluster", "ask", "asked", "message"),
    [
        (Asked(), None, [], r"asked to stop \(maintenance\) and was not saved: it keeps no checkpoints"),
        (Asked(), Asked.ask, [4], r"could not be saved within 0\.5 s"),
        (Asked(), lambda cluster, attempt: disk_full(attempt), [], "could not be asked to save: No space left"),
        (Asked(waits=True), Asked.ask, [4], "had not begun"),
        (Asked(Stopped("saved at step 3")), Asked.ask, [4], "^saved at step 3$"),
        (Asked(WorkerLost("its executor got SIGTERM")), Asked.ask, [4], "failed before it was saved: its executor got"),
    ],
)
def test_gang_stops(cluster, ask, asked, message):
    on_stop = None if ask is None else lambda attempt: ask(cluster, attempt)
    with pytest.raises(Stopped, match=message):
        stop(cluster, 0.5 if "within" in message else 60.0, on_stop=on_stop)
    assert cluster.asked == asked
    assert cluster.begun == [(4, 2)]


@pytest.mark.parametrize("error", [InvalidInput("the loss is nan"), Fenced("attempt 5 has begun"), ZeroDivisionError()])
def test_mistakes_are_raised_unchanged(error):
    cluster = Asked(error)
    with pytest.raises(type(error)) as caught:
        stop(cluster, on_stop=cluster.ask)
    assert caught.value is error


def test_gang_that_ends_keeps_its_values_and_no_other_begins():
    cluster = Asked([1, 2])
    assert stop(cluster, on_stop=cluster.ask) == [1, 2]
    with pytest.raises(Stopped, match="had not begun"):
        stop(Scripted([1, 2]))


def test_request_between_two_attempts():
    cluster = Scripted(WorkerLost("killed"), [1, 2])

    def listener(event: Event) -> None:
        if event.kind == "restart":
            request_stop("maintenance")

    with pytest.raises(Stopped, match="waiting to begin an attempt"):
        Supervisor(cluster, back_off=3600).gang(print, listener=listener)
    assert [attempt for attempt, _ in cluster.begun] == [0]


@pytest.mark.parametrize("saves", [True, False])
def test_processes_save_or_are_cancelled(tmp_path, saves):
    checkpoints, mark = Checkpoints(str(tmp_path / "checkpoints"), run="a run"), tmp_path / "mark"

    def work(world: Any, part: Any) -> None:
        mark.touch()
        while not (saves and checkpoints.asked_to_stop(2)):
            time.sleep(0.01)
        world.clock.tick(3)
        raise Stopped("saved at step 1.")

    def request() -> None:
        while not mark.exists():
            time.sleep(0.01)
        request_stop("maintenance")

    threading.Thread(target=request, daemon=True).start()
    with LocalCluster(2) as cluster, pytest.raises(Stopped) as caught:
        Supervisor(cluster, on_stop=checkpoints.ask_to_stop if saves else None).gang(work, attempt=2)
    if not saves:
        assert "keeps no checkpoints" in caught.value.message
        return
    assert caught.value.message == "saved at step 1."
    assert (caught.value.step, caught.value.attempt, caught.value.trace) == (1, 2, None)
    assert checkpoints.next_attempt() == 3
