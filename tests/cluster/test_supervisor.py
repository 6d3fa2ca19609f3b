"""Gangs that fail and are run again: which are, which are not, and what the user is told."""

from __future__ import annotations

import functools
import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.local import LocalCluster
from sparkdl.cluster.supervisor import Supervisor, _AttemptMonitor, worth_another
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import ClusterUnavailable, ErrorContext, InvalidInput, PeerLost, Stopped, WorkerFailed, WorkerLost
from sparkdl.telemetry.emit import record

ROWS = {"x": np.arange(8.0)}
COLUMNS = Columns((InputColumn("x"),))


def failed(kind="ValueError", step=3):
    return WorkerFailed(f"{kind}: something", place=ErrorContext("work", 0, "host", 0, step))


# ---- what is worth another attempt ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "earlier", "again"),
    [
        (WorkerLost("killed"), [], True),
        (WorkerLost("killed"), [WorkerLost("killed")] * 5, True),
        (PeerLost("gone"), [], True),
        (InvalidInput("batchSize is 0"), [], False),
        (ClusterUnavailable("no slots"), [], False),
        (Stopped("saved at step 3"), [WorkerLost("killed")], False),
        (ClusterUnavailable("no slots"), [WorkerLost("killed")], True),
        (failed(), [], True),
        (failed(), [failed()], False),
        (failed(), [WorkerLost("killed"), failed()], False),
        (failed(), [failed(step=2)], True),
        (failed(), [failed("KeyError")], True),
    ],
)
def test_worth_another(error, earlier, again):
    assert worth_another(error, earlier, everywhere=False) is again


def test_what_fails_everywhere_before_the_first_step_is_in_the_code_or_the_data():
    assert not worth_another(failed(step=0), [], everywhere=True)
    assert worth_another(PeerLost("gone"), [], everywhere=True)


class Scripted:
    """A cluster whose gangs end as they are told."""

    size = 2

    def __init__(self, *endings: Any) -> None:
        self.endings = list(endings)
        self.attempts: list[int] = []

    def gang(self, work, data=None, columns=None, *, listener=None, attempt=0, guard=None, size=None):
        self.attempts.append(attempt)
        ending = self.endings.pop(0)
        if isinstance(ending, Exception):
            raise ending
        return ending


def test_attempts_are_numbered_and_the_listener_hears_of_restarts():
    cluster, events = Scripted(WorkerLost("killed"), PeerLost("gone"), [1, 2]), []
    supervisor = Supervisor(cluster, back_off=0)
    assert supervisor.gang(print, listener=events.append) == [1, 2]
    assert cluster.attempts == [0, 1, 2]
    assert [type(error) for error in supervisor.failures] == [WorkerLost, PeerLost]
    assert [(event.kind, event.attempt, event.payload.get("cause")) for event in events] == [
        ("attempt", 0, None),
        ("restart", 0, "WorkerLost: killed"),
        ("attempt", 1, None),
        ("restart", 1, "PeerLost: gone"),
        ("attempt", 2, None),
    ]
    assert {event.payload["size"] for event in events if event.kind == "attempt"} == {cluster.size}


def test_pauses_double(monkeypatch):
    pauses = []
    monkeypatch.setattr("sparkdl.cluster.supervisor.pause", pauses.append)
    Supervisor(Scripted(*[WorkerLost("killed")] * 8, [1]), back_off=1.5, max_restarts=8).gang(print)
    assert pauses == [1.5, 3, 6, 12, 24, 48, 60, 60]


def test_one_failure_too_many_tells_of_all():
    cluster = Scripted(WorkerLost("the first", place=ErrorContext("work", 1, "a", 0, 7)), *[WorkerLost("killed")] * 2)
    with pytest.raises(WorkerLost) as caught:
        Supervisor(cluster, back_off=0, max_restarts=2).gang(print)
    assert cluster.attempts == [0, 1, 2]
    assert "WorkerLost: the first [stage work, rank 1, host a, attempt 0, step 7]" in caught.value.message
    assert "attempt number 3" in caught.value.message


def test_the_only_failure_is_raised_as_it_is():
    error = WorkerLost("killed")
    error.__cause__ = OSError("Spark's own")
    with pytest.raises(WorkerLost) as caught:
        Supervisor(Scripted(error), max_restarts=0).gang(print)
    assert caught.value is error
    assert isinstance(error.__cause__, OSError)


def test_other_errors_are_not_its_business():
    with pytest.raises(ZeroDivisionError):
        Supervisor(Scripted(ZeroDivisionError())).gang(print)


@pytest.mark.parametrize(("timeout", "seconds"), [(1.2, 0.1), (6.0, 0.5), (60.0, 1.0)])
def test_silence_is_looked_for_every_second_at_least(timeout, seconds):
    watch = _AttemptMonitor(0, timeout, 600.0, None)
    waits: list[float] = []
    watch._ended = SimpleNamespace(wait=lambda given: waits.append(given) or True)  # type: ignore[assignment]
    watch._look()
    assert waits == [pytest.approx(seconds)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_restarts": -1}, "max_restarts is -1"),
        ({"back_off": -0.5}, "back_off is -0.5"),
        ({"heartbeat_timeout": 0}, "heartbeat_timeout is 0"),
        ({"stall_timeout": -3}, "stall_timeout is -3"),
    ],
)
def test_limits_that_cannot_be(given, message):
    with pytest.raises(InvalidInput, match=message):
        Supervisor(InlineCluster(), **given)


# ---- real processes ----------------------------------------------------------------------------------------------


def rows(world, part):
    """A step, then the attempt that succeeded and the rows of this part."""
    world.clock.tick(1)
    world.group().sum_(torch.ones(1))
    return world.attempt, part.rows


def ends(world, part, *, how, rank=1, attempts=1):
    """``rows``, but in the first attempts one member does not get that far."""
    if world.attempt < attempts and world.rank == rank:
        if how == "raise":
            raise LookupError("no such sample")
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[how])
    return rows(world, part)


@pytest.fixture(scope="module")
def cluster():
    """Two members; those that are lost are replaced."""
    with LocalCluster(2, timeout=60) as cluster:
        yield cluster


@pytest.mark.chaos
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("how", ["kill", "stop", "raise"])
def test_a_member_that_goes_is_replaced(cluster, how, rank):
    supervisor = Supervisor(cluster, back_off=0, heartbeat_timeout=3)
    found = supervisor.gang(functools.partial(ends, how=how, rank=rank), ROWS, COLUMNS)
    assert found == [(1, 4), (1, 4)]
    (failure,) = supervisor.failures
    assert failure.rank == rank
    assert failure.attempt == 0
    assert type(failure) is (WorkerFailed if how == "raise" else WorkerLost)


def stuck(world, part):
    """A gang that is seen to take a step, and in the first attempt never another."""
    for _ in range(2):
        record("heartbeat", clock=world.clock, host=world.host, phase=world.phase)
        world.clock.tick(1)
    if world.attempt == 0 and world.rank == 0:
        threading.Event().wait()
    return world.attempt


@pytest.mark.chaos
def test_a_gang_that_does_not_move_is_run_again(cluster):
    supervisor = Supervisor(cluster, back_off=0, heartbeat_timeout=3, stall_timeout=2)
    assert supervisor.gang(stuck) == [1, 1]
    assert "lives but has been at step 2, work" in supervisor.failures[0].message


def test_an_error_of_every_member_is_not_tried_again(cluster):
    supervisor = Supervisor(cluster, back_off=0)
    with pytest.raises(WorkerFailed, match="ZeroDivisionError"):
        supervisor.gang(lambda world, part: 1 / 0, ROWS, COLUMNS)
    assert len(supervisor.failures) == 1


def test_the_same_error_at_the_same_step_twice_is_one_of_the_code(cluster):
    supervisor = Supervisor(cluster, back_off=0)
    with pytest.raises(WorkerFailed, match="no such sample") as caught:
        supervisor.gang(functools.partial(ends, how="raise", attempts=9), ROWS, COLUMNS)
    assert [error.attempt for error in supervisor.failures] == [0, 1]
    assert "attempt number 2" in caught.value.message


def test_one_member_in_this_process_needs_no_watch():
    assert Supervisor(InlineCluster()).gang(rows, ROWS, COLUMNS) == [(0, 8)]
