"""A gang that is ended from outside raises the reason, whatever it ran into because of it."""

from __future__ import annotations

import pytest

from sparkdl.cluster.cancellation import CancellationToken
from sparkdl.errors import WorkerLost

REASON = WorkerLost("rank 1 is silent")


def gang(guard, stopped, *reasons):
    """A gang that is ended, once for each reason, and fails because of it."""
    with guard.stopping(lambda: stopped.append(1)):
        for reason in reasons:
            guard.end(reason)
        raise ConnectionError("the job was cancelled")


def test_the_reason_takes_the_place_of_its_consequences():
    guard, stopped = CancellationToken(), []
    with pytest.raises(WorkerLost, match="silent") as caught:
        gang(guard, stopped, REASON)
    assert stopped == [1]
    assert isinstance(caught.value.__cause__, ConnectionError)


def test_the_first_reason_counts_and_stops_once():
    guard, stopped = CancellationToken(), []
    with pytest.raises(WorkerLost, match="silent"):
        gang(guard, stopped, REASON, WorkerLost("another"))
    assert stopped == [1]


def test_a_gang_that_was_ended_before_it_began_does_not_begin():
    guard = CancellationToken()
    guard.end(REASON)
    with pytest.raises(WorkerLost, match="silent"), guard.stopping(lambda: pytest.fail("there is nothing to stop")):
        pytest.fail("the gang began")


def test_without_a_reason_errors_are_what_they_are():
    with pytest.raises(ConnectionError), CancellationToken().stopping(lambda: None):
        raise ConnectionError


def test_what_succeeded_just_before_has_succeeded():
    guard = CancellationToken()
    with guard.stopping(lambda: None):
        value = 3
    guard.end(REASON)
    assert value == 3
