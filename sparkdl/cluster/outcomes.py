"""What the members of a gang came back with, taken together: their values, or the first cause."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from sparkdl.cluster.worker import Failure, Outcome
from sparkdl.errors import MemberFailed, Place
from sparkdl.telemetry.channel import Listener
from sparkdl.telemetry.emit import Event


def settle(
    outcomes: Sequence[Outcome], listener: Callable[[Event], None] | None = None, *, attempt: int = 0
) -> list[Any]:
    """The values of a gang in rank order, or its first cause.

    Args:
        outcomes: of the members.
        listener: hears of each an ``outcome`` event: the ``seconds`` of its stages, and how many of its events were
            ``dropped``, of which no other event may have come through.
        attempt: which attempt it was.

    Raises:
        SparkdlError: at least one member failed. An error that only says that another member has gone is never
            chosen while there is another; of the rest the earliest is.
    """
    hear = None if listener is None else Listener(listener)  # which survives what the listener raises
    for outcome in outcomes if hear is not None else ():
        told = {"seconds": outcome.seconds, "dropped": outcome.dropped, "recorder": outcome.recorder}
        hear(Event("outcome", outcome.rank, attempt, time.time(), None, told))  # type: ignore[misc]
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    if failures:
        raise first_cause(failures).error()
    return [_value(outcome) for outcome in sorted(outcomes, key=lambda outcome: outcome.rank)]


def first_cause(failures: Sequence[Failure]) -> Failure:
    """The failure that the others follow from."""
    return min(failures, key=lambda failure: (failure.peer, failure.time))


def _value(outcome: Outcome) -> Any:
    try:
        return cloudpickle.loads(outcome.value)
    except Exception as error:
        message = f"what rank {outcome.rank} returned cannot be unpickled here: {type(error).__name__}: {error}"
        raise MemberFailed(message, place=Place("result", outcome.rank)) from error
