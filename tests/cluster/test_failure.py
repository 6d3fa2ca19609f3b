"""Failures travel as plain data, and the driver raises the first cause."""

from __future__ import annotations

import cloudpickle
import pytest

from sparkdl.cluster.failure import Failure, WorkerResult, first_cause, raise_first_cause
from sparkdl.errors import ErrorContext, InvalidInput, PeerLost, WorkerFailed, WorkerLost


def test_failures_travel_as_plain_data():
    try:
        raise ValueError("sour")
    except ValueError as error:
        failure = Failure.of(error, ErrorContext("work", 1))
    assert Failure.from_json(failure.to_json()) == failure
    assert cloudpickle.loads(cloudpickle.dumps(failure)) == failure


@pytest.mark.parametrize(
    ("kind", "error", "message", "trace"),
    [
        ("ValueError", WorkerFailed, "ValueError: what", "a trace"),
        ("InvalidInput", InvalidInput, "what", None),
        ("WorkerLost", WorkerLost, "what", "a trace"),
        ("PeerLost", PeerLost, "what", "a trace"),
        ("ErrorContext", WorkerFailed, "ErrorContext: what", "a trace"),
        ("dataclass", WorkerFailed, "dataclass: what", "a trace"),
    ],
)
def test_the_error_on_the_driver(kind, error, message, trace):
    raised = Failure(kind, "what", "a trace", ErrorContext("work", 1), False, 0.0).error()
    assert type(raised) is error
    assert (raised.message, raised.trace, raised.place) == (message, trace, ErrorContext("work", 1))


def failure(rank: int, kind: str, peer: bool, when: float) -> Failure:
    return Failure(kind, f"message of {rank}", "", ErrorContext("work", rank), peer, when)


def test_the_first_cause_is_the_earliest_that_is_not_a_consequence():
    lost, failed, later = (
        failure(0, "PeerLost", True, 1.0),
        failure(1, "KeyError", False, 2.0),
        failure(2, "OSError", False, 3.0),
    )
    assert first_cause([later, lost, failed]) is failed
    assert first_cause([lost, failure(3, "RuntimeError", True, 0.5)]).place.rank == 3
    with pytest.raises(WorkerFailed, match="KeyError: message of 1"):
        raise_first_cause(
            [WorkerResult(3, b""), *(WorkerResult(each.place.rank, failure=each) for each in (later, lost, failed))]
        )
