"""Restarts of failed gangs: which are run again, and the first cause. Real processes: tests/chaos."""

from __future__ import annotations

import threading
import weakref
from types import SimpleNamespace

import cloudpickle
import pytest
import torch

from sparkdl.cluster.cancellation import CancellationToken
from sparkdl.cluster.failure import Failure, WorkerResult, first_cause, raise_first_cause
from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.supervisor import Supervisor, _AttemptMonitor, worth_another
from sparkdl.errors import ClusterUnavailable, ErrorContext, InvalidInput, PeerLost, Stopped, WorkerFailed, WorkerLost
from sparkdl.telemetry.event import Event
from tests.cluster.scripted import Scripted
from tests.contracts import work

KILLED = WorkerLost("killed")


def failed(kind="ValueError", step=3):
    return WorkerFailed(f"{kind}: something", context=ErrorContext("work", 0, "host", 0, step))


@pytest.mark.parametrize(
    ("error", "earlier", "everywhere", "again"),
    [
        (KILLED, [], False, True),
        (KILLED, [KILLED] * 5, False, True),
        (PeerLost("gone"), [], False, True),
        (PeerLost("gone"), [], True, True),
        (InvalidInput("batchSize is 0"), [], False, False),
        (ClusterUnavailable("no slots"), [], False, False),
        (ClusterUnavailable("no slots"), [KILLED], False, True),
        (Stopped("saved at step 3"), [KILLED], False, False),
        (failed(), [], False, True),
        (failed(), [failed()], False, False),
        (failed(), [KILLED, failed()], False, False),
        (failed(), [failed(step=2)], False, True),
        (failed(), [failed("KeyError")], False, True),
        (failed(step=0), [], True, False),
    ],
)
def test_worth_another_attempt(error, earlier, everywhere, again):
    assert worth_another(error, earlier, everywhere=everywhere) is again


def test_attempts_are_numbered_and_listener_gets_restarts():
    cluster, events = Scripted(KILLED, PeerLost("gone"), [1, 2]), []
    supervisor = Supervisor(cluster, back_off=0)
    assert supervisor.gang(print, listener=events.append) == [1, 2]
    assert cluster.begun == [(0, 2), (1, 2), (2, 2)]
    assert [type(error) for error in supervisor.failures] == [WorkerLost, PeerLost]
    assert [(event.kind, event.attempt, event.payload.get("cause", event.payload.get("size"))) for event in events] == [
        ("attempt", 0, 2),
        ("restart", 0, "WorkerLost: killed"),
        ("attempt", 1, 2),
        ("restart", 1, "PeerLost: gone"),
        ("attempt", 2, 2),
    ]


def test_pauses_double(monkeypatch):
    pauses = []
    monkeypatch.setattr("sparkdl.cluster.supervisor.pause", pauses.append)
    Supervisor(Scripted(*[KILLED] * 8, [1]), back_off=1.5, max_restarts=8).gang(print)
    assert pauses == [1.5, 3, 6, 12, 24, 48, 60, 60]


def test_last_failure_lists_earlier_ones():
    cluster = Scripted(WorkerLost("the first", context=ErrorContext("work", 1, "a", 0, 7)), KILLED, KILLED)
    with pytest.raises(WorkerLost) as caught:
        Supervisor(cluster, back_off=0, max_restarts=2).gang(print)
    assert [attempt for attempt, _ in cluster.begun] == [0, 1, 2]
    assert "WorkerLost: the first [stage work, rank 1, host a, attempt 0, step 7]" in caught.value.message
    assert "This was attempt 3" in caught.value.message


@pytest.mark.parametrize("error", [WorkerLost("killed"), ZeroDivisionError()])
def test_only_failure_and_foreign_errors_are_raised_unchanged(error):
    error.__cause__ = OSError("Spark's own")
    with pytest.raises(type(error)) as caught:
        Supervisor(Scripted(error), max_restarts=0).gang(print)
    assert caught.value is error
    assert isinstance(error.__cause__, OSError)


@pytest.mark.parametrize(("timeout", "seconds"), [(1.2, 0.1), (6.0, 0.5), (60.0, 1.0)])
def test_monitor_checks_every_second_at_least(timeout, seconds):
    monitor, waits = _AttemptMonitor(0, timeout, 600.0, print), []
    monitor.check_workers(SimpleNamespace(wait=lambda seconds: waits.append(seconds) or True))  # type: ignore[arg-type]
    assert waits == [pytest.approx(seconds)]


def test_stuck_gang_is_restarted():
    def stuck(listener, attempt, cancellation):
        ended = threading.Event()
        with cancellation.stopping(ended.set):
            for step in (1, 2):
                listener(Event("heartbeat", 0, attempt, 0.0, {"step": step}, {"host": "host", "phase": "work"}))
            assert ended.wait(30)
            raise ConnectionError("cancelled")

    supervisor = Supervisor(Scripted(stuck, [1]), back_off=0, heartbeat_timeout=3, stall_timeout=0.3)
    assert supervisor.gang(print) == [1]
    assert "rank 0 is alive but made no progress for 0 s, at step 2 in phase work" in supervisor.failures[0].message


def test_first_reason_cancels_gang_once_and_replaces_consequences():
    token, stops = CancellationToken(), []
    with pytest.raises(ConnectionError), token.stopping(lambda: None):
        raise ConnectionError

    def gang() -> None:
        token.end(KILLED)
        token.end(WorkerLost("another"))
        raise ConnectionError("the job was cancelled")

    with pytest.raises(WorkerLost) as caught, token.stopping(lambda: stops.append(1)):
        gang()
    assert (caught.value, stops) == (KILLED, [1])
    assert isinstance(caught.value.__cause__, ConnectionError)
    with pytest.raises(WorkerLost), token.stopping(lambda: pytest.fail("there is nothing to stop")):
        pytest.fail("the gang began")


@pytest.mark.parametrize(("step", "attempts"), [(1, [0, 1]), (0, [0])])
def test_error_at_same_step_or_everywhere_before_first_is_raised(step, attempts):
    supervisor = Supervisor(InlineCluster(), back_off=0)
    with pytest.raises(WorkerFailed, match="the milk is sour"):
        supervisor.gang(work.Fails(0, ValueError("the milk is sour"), step=step))
    assert [error.attempt for error in supervisor.failures] == attempts


# ---- failures travel as plain data, and the driver raises the first cause --------------------------------------------


PLACE = ErrorContext("work", 1)


def test_failures_travel_as_plain_data():
    failure = Failure.of(ValueError("sour"), PLACE)
    assert Failure.from_json(failure.to_json()) == failure
    assert cloudpickle.loads(cloudpickle.dumps(failure)) == failure


def test_failure_releases_objects_of_its_traceback():
    modules: list[weakref.ref[torch.nn.Module]] = []

    def fails():
        module = torch.nn.Linear(2, 2)
        modules.append(weakref.ref(module))
        try:
            module(torch.zeros(3))
        except RuntimeError as error:
            raise ValueError("shapes") from error

    try:
        fails()
    except ValueError as error:
        failure = Failure.of(error, PLACE)
    assert failure.kind == "ValueError"
    assert "shapes cannot be multiplied" in failure.trace
    assert modules[0]() is None


def test_chain_of_causes_is_followed_once_to_a_lost_peer():
    itself = ValueError("once")
    itself.__cause__ = itself  # as by `raise error from error`
    assert not Failure.of(itself, PLACE).peer
    wrapped, last = KeyError("wrapped"), ValueError("without its cause")
    wrapped.__cause__, last.__context__ = PeerLost("the other worker has gone"), wrapped
    assert Failure.of(last, PLACE).peer


@pytest.mark.parametrize(
    ("kind", "error", "message", "trace"),
    [
        ("ValueError", WorkerFailed, "ValueError: text", "a trace"),
        ("InvalidInput", InvalidInput, "text", None),
        ("WorkerLost", WorkerLost, "text", "a trace"),
        ("PeerLost", PeerLost, "text", "a trace"),
        ("ErrorContext", WorkerFailed, "ErrorContext: text", "a trace"),
        ("dataclass", WorkerFailed, "dataclass: text", "a trace"),
    ],
)
def test_error_on_driver(kind, error, message, trace):
    raised = Failure(kind, "text", "a trace", PLACE, False, 0.0).error()
    assert type(raised) is error
    assert (raised.message, raised.trace, raised.context) == (message, trace, PLACE)


def test_first_cause_is_earliest_that_is_no_consequence():
    def failure(rank: int, kind: str, peer: bool, when: float) -> Failure:
        return Failure(kind, f"message of {rank}", "", ErrorContext("work", rank), peer, when)

    lost, cause = failure(0, "PeerLost", True, 1.0), failure(1, "KeyError", False, 2.0)
    later = failure(2, "OSError", False, 3.0)
    assert first_cause([later, lost, cause]) is cause
    assert first_cause([lost, failure(3, "RuntimeError", True, 0.5)]).context.rank == 3
    with pytest.raises(WorkerFailed, match="KeyError: message of 1"):
        raise_first_cause([WorkerResult(3, b""), *(WorkerResult(0, failure=other) for other in (later, lost, cause))])
