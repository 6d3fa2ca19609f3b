"""A gang that is ended from outside raises the reason, whatever it ran into because of it."""

from __future__ import annotations

import pytest

from sparkdl.cluster.cancellation import Guard
from sparkdl.errors import MemberLost

REASON = MemberLost("rank 1 is silent")


def gang(guard, stopped, *reasons):
    """A gang that is ended, once for each reason, and fails because of it."""
    with guard.stopping(lambda: stopped.append(1)):
        for reason in reasons:
            guard.end(reason)
        raise ConnectionError("the job was cancelled")


def test_the_reason_takes_the_place_of_its_consequences():
    guard, stopped = Guard(), []
    with pytest.raises(MemberLost, match="silent") as caught:
        gang(guard, stopped, REASON)
    assert stopped == [1]
    assert isinstance(caught.value.__cause__, ConnectionError)


def test_the_first_reason_counts_and_stops_once():
    guard, stopped = Guard(), []
    with pytest.raises(MemberLost, match="silent"):
        gang(guard, stopped, REASON, MemberLost("another"))
    assert stopped == [1]


def test_a_gang_that_was_ended_before_it_began_does_not_begin():
    guard = Guard()
    guard.end(REASON)
    with pytest.raises(MemberLost, match="silent"), guard.stopping(lambda: pytest.fail("there is nothing to stop")):
        pytest.fail("the gang began")


def test_without_a_reason_errors_are_what_they_are():
    with pytest.raises(ConnectionError), Guard().stopping(lambda: None):
        raise ConnectionError


def test_what_succeeded_just_before_has_succeeded():
    guard = Guard()
    with guard.stopping(lambda: None):
        value = 3
    guard.end(REASON)
    assert value == 3
