"""Failures travel as plain data, and the driver raises the first cause."""

from __future__ import annotations

import weakref

import cloudpickle
import pytest
import torch

from sparkdl.cluster.failure import Failure, WorkerResult, first_cause, raise_first_cause
from sparkdl.errors import ErrorContext, InvalidInput, PeerLost, WorkerFailed, WorkerLost

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
    assert (raised.message, raised.trace, raised.place) == (message, trace, PLACE)


def test_first_cause_is_earliest_that_is_no_consequence():
    def failure(rank: int, kind: str, peer: bool, when: float) -> Failure:
        return Failure(kind, f"message of {rank}", "", ErrorContext("work", rank), peer, when)

    lost, cause = failure(0, "PeerLost", True, 1.0), failure(1, "KeyError", False, 2.0)
    later = failure(2, "OSError", False, 3.0)
    assert first_cause([later, lost, cause]) is cause
    assert first_cause([lost, failure(3, "RuntimeError", True, 0.5)]).place.rank == 3
    with pytest.raises(WorkerFailed, match="KeyError: message of 1"):
        raise_first_cause([WorkerResult(3, b""), *(WorkerResult(0, failure=other) for other in (later, lost, cause))])
