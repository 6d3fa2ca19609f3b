"""A gang that runs when the process is asked to stop saves and ends, or is ended."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.local import LocalCluster
from sparkdl.cluster.shutdown import forget_stop, request_stop
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import Fenced, InvalidInput, Stopped, WorkerLost
from sparkdl.telemetry.event import Event
from tests.cluster.test_supervisor import COLUMNS, ROWS, Scripted
from tests.training.test_resume import CASES, data


@pytest.fixture(autouse=True)
def forget():
    yield
    forget_stop()


class Asked:
    """A cluster whose gangs run until they are asked or ended, and then end as they are told."""

    size = 2

    def __init__(self, ending: Any = None, *, waits: bool = False) -> None:
        self.ending, self.waits = ending, waits
        self.asked: list[int] = []
        self.attempts: list[int] = []
        self._moved = threading.Event()

    def ask(self, attempt: int) -> None:
        """What the supervisor calls."""
        self.asked.append(attempt)
        if self.ending is not None:
            self._moved.set()

    def gang(self, work, data=None, columns=None, *, listener=None, attempt=0, guard=None, size=None):
        self.attempts.append(attempt)
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


def test_what_cannot_be_saved_is_ended_at_once():
    cluster = Asked()
    with pytest.raises(Stopped, match=r"asked to stop \(maintenance\) and was not saved: it keeps no checkpoints"):
        stop(cluster)
    assert cluster.attempts == [4]


def test_members_are_asked_once_and_end_by_themselves():
    error = Stopped("saved at step 3")
    cluster = Asked(error)
    with pytest.raises(Stopped) as caught:
        stop(cluster, on_stop=cluster.ask)
    assert caught.value is error
    assert (cluster.asked, cluster.attempts) == ([4], [4])


def test_members_that_do_not_save_in_time_are_ended():
    cluster = Asked()
    with pytest.raises(Stopped, match=r"could not be saved within 0\.5 s"):
        stop(cluster, 0.5, on_stop=cluster.ask)
    assert cluster.asked == [4]


def test_a_request_that_cannot_be_passed_on_ends_the_gang():
    def fails(attempt: int) -> None:
        raise OSError("No space left on device")

    with pytest.raises(Stopped, match="could not be told to save: No space left on device"):
        stop(Asked(), on_stop=fails)


def test_what_waits_for_slots_has_nothing_to_save():
    cluster = Asked(waits=True)
    with pytest.raises(Stopped, match="had not begun"):
        stop(cluster, on_stop=cluster.ask)


def test_a_gang_that_fails_while_it_stops_is_not_run_again():
    cluster = Asked(WorkerLost("its executor got SIGTERM as well"))
    with pytest.raises(Stopped, match="failed before it was saved: its executor got SIGTERM as well") as caught:
        stop(cluster, on_stop=cluster.ask)
    assert isinstance(caught.value.__cause__, WorkerLost)
    assert cluster.attempts == [4]


@pytest.mark.parametrize("error", [InvalidInput("the loss is nan"), Fenced("attempt 5 has begun"), ZeroDivisionError()])
def test_mistakes_stay_what_they_are(error):
    cluster = Asked(error)
    with pytest.raises(type(error)) as caught:
        stop(cluster, on_stop=cluster.ask)
    assert caught.value is error


def test_a_gang_that_was_about_to_end_has_its_values():
    cluster = Asked([1, 2])
    assert stop(cluster, on_stop=cluster.ask) == [1, 2]
    with pytest.raises(Stopped, match="had not begun"):  # and nothing begins after it
        stop(Scripted([1, 2]))


def test_a_request_between_two_attempts():
    cluster = Scripted(WorkerLost("killed"), [1, 2])

    def listener(event: Event) -> None:
        if event.kind == "restart":
            request_stop("maintenance")

    with pytest.raises(Stopped, match="waiting to begin an attempt"):
        Supervisor(cluster, back_off=3600).gang(print, listener=listener)
    assert cluster.attempts == [0]


# ---- real processes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heeds:
    """A hook that asks for a stop at a step by leaving a file, waits for the driver's answer, and stops.

    Attributes:
        checkpoints: where the answer is looked for.
        mark: the file.
    """

    checkpoints: Checkpoints
    mark: str

    every_rank = True

    def on_step(self, run: Any) -> None:
        """Stop at step 3."""
        if run.clock.step < 3:
            return
        Path(self.mark).touch()
        while not self.checkpoints.asked_to_stop(2):
            time.sleep(0.01)
        raise Stopped(f"saved at step {run.clock.step}.")


def request_at(mark: Path) -> None:
    """Request a stop once there is this file."""

    def look() -> None:
        while not mark.exists():
            time.sleep(0.01)
        request_stop("maintenance")

    threading.Thread(target=look, daemon=True).start()


@pytest.fixture(scope="module")
def pair():
    """Two members; those that are lost are replaced."""
    with LocalCluster(2, timeout=60) as cluster:
        yield cluster


def test_members_hear_of_it_and_what_they_say_reaches_the_driver(pair, tmp_path):
    checkpoints = Checkpoints(str(tmp_path / "checkpoints"), run="a run")
    training, columns = CASES["SGD"]()
    training = replace(training, hooks=[Heeds(checkpoints, str(tmp_path / "mark"))])
    request_at(tmp_path / "mark")
    with pytest.raises(Stopped) as caught:
        Supervisor(pair, on_stop=checkpoints.ask_to_stop).gang(training, data(), columns, attempt=2)
    assert caught.value.message == "saved at step 3."
    assert (caught.value.step, caught.value.attempt, caught.value.trace) == (3, 2, None)
    assert checkpoints.next_attempt() == 3


@dataclass(frozen=True)
class Endless:
    """Work that leaves a file and does not end."""

    mark: str

    def __call__(self, world: Any, part: Any) -> None:
        """Stay."""
        Path(self.mark).touch()
        threading.Event().wait()


def test_members_that_keep_nothing_are_ended(pair, tmp_path):
    request_at(tmp_path / "mark")
    with pytest.raises(Stopped, match="keeps no checkpoints"):
        Supervisor(pair).gang(Endless(str(tmp_path / "mark")), ROWS, COLUMNS)
