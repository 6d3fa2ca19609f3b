"""Failures of a gang's members: each as plain data, and the first cause of several."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import cloudpickle

from sparkdl.cluster.group.world import is_peer_failure
from sparkdl.errors import MemberFailed, Place, SparkdlError, cause_of, error_of
from sparkdl.telemetry.event import Event, Listener
from sparkdl.telemetry.recorder import Told


@dataclass(frozen=True)
class Failure:
    """A member's error as plain data, first cause or consequence.

    Attributes:
        kind: the error's class name.
        message: its text.
        trace: its traceback.
        place: where it happened.
        peer: whether it only says, or follows from it, that another member has gone.
        time: when it happened, in seconds since the epoch on that member.
    """

    kind: str
    message: str
    trace: str
    place: Place
    peer: bool
    time: float

    @staticmethod
    def of(error: BaseException, place: Place) -> Failure:
        """Take down an error and let go of everything its traceback holds on to."""
        peer = any(is_peer_failure(each) for each in _chain(error))
        failure = Failure(*cause_of(error), place, peer, time.time())
        _forget(error)
        return failure

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Failure:
        """The failure whose fields are ``values``."""
        return Failure(**{**values, "place": Place(**values["place"])})

    def to_json(self) -> dict[str, Any]:
        """The failure as plain data."""
        return asdict(self)

    def error(self) -> SparkdlError:
        """The error to raise on the driver."""
        return error_of((self.kind, self.message, self.trace), self.place)


@dataclass(frozen=True)
class Outcome:
    """What a member came back with: a pickled value, or a failure.

    Attributes:
        rank: the member's rank.
        value: the pickled return value of the work.
        failure: what went wrong.
        seconds: wall time by stage.
        told: what became of the worker's events; the driver compares it with what it has heard.
    """

    rank: int
    value: bytes | None = None
    failure: Failure | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    told: Told = field(default_factory=Told)


def settle(
    outcomes: Sequence[Outcome], listener: Callable[[Event], None] | None = None, *, attempt: int = 0
) -> list[Any]:
    """The values of a gang in rank order, or its first cause.

    Args:
        outcomes: of the members.
        listener: hears of each an ``outcome`` event: the ``seconds`` of its stages, and what it says of its events
            (``sparkdl.telemetry.recorder.Told``), none of which may have come through.
        attempt: which attempt it was.

    Raises:
        SparkdlError: at least one member failed. An error that only says that another member has gone is never
            chosen while there is another; of the rest the earliest is.
    """
    hear = None if listener is None else Listener(listener)  # which survives what the listener raises
    for outcome in outcomes if hear is not None else ():
        told = {"seconds": outcome.seconds, **vars(outcome.told)}
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


def _chain(error: BaseException) -> list[BaseException]:
    """The error, and whatever it was raised from or while handling."""
    found: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and all(each is not other for other in found):  # `raise error from error` is legal
            found.append(each)
            left += [each.__cause__, each.__context__]
    return found


def _forget(error: BaseException) -> None:
    """Drop the locals that tracebacks keep: a process group among them would keep its peers waiting."""
    for each in _chain(error):
        traceback.clear_frames(each.__traceback__)
        each.__traceback__ = None
    gc.collect()
