"""A cancelled gang raises the reason in place of its consequences."""

from __future__ import annotations

import pytest

from sparkdl.cluster.cancellation import CancellationToken
from sparkdl.errors import WorkerLost

REASON = WorkerLost("rank 1 is silent")


def test_first_reason_replaces_consequences_and_stops_once():
    token, stopped = CancellationToken(), []

    def gang() -> None:
        with token.stopping(lambda: stopped.append(1)):
            token.end(REASON)
            token.end(WorkerLost("another"))
            raise ConnectionError("the job was cancelled")

    with pytest.raises(WorkerLost, match="silent") as caught:
        gang()
    assert stopped == [1]
    assert isinstance(caught.value.__cause__, ConnectionError)


def test_cancelled_gang_does_not_begin():
    token = CancellationToken()
    token.end(REASON)
    with pytest.raises(WorkerLost, match="silent"), token.stopping(lambda: pytest.fail("there is nothing to stop")):
        pytest.fail("the gang began")


def test_without_reason_errors_and_values_are_unchanged():
    token = CancellationToken()
    with pytest.raises(ConnectionError), token.stopping(lambda: None):
        raise ConnectionError
    with token.stopping(lambda: None):
        value = 3
    token.end(REASON)
    assert value == 3
