"""What can go wrong, and where it went wrong.

A user's mistake is an ``InvalidInput`` and is raised before anything is launched where that is possible. A
failure on a member reaches the driver once, as the first cause, with the place it happened: stage, rank, host,
attempt and step.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, fields

__all__ = [
    "CheckpointDamaged",
    "ClusterUnavailable",
    "Fenced",
    "InvalidInput",
    "MemberFailed",
    "MemberLost",
    "PeerLost",
    "Place",
    "Resized",
    "SparkdlError",
    "Stopped",
]

Cause = tuple[str, str, str]
"""Class name, message and traceback of an error, as it travels from a worker to the driver."""


@dataclass(frozen=True)
class Place:
    """Where something happened; what is not known is None.

    Attributes:
        stage: what was being done, for example ``"feed"`` or ``"train"``.
        rank: the member's rank in the gang.
        host: the member's host name.
        attempt: the attempt the gang was in, from 0.
        step: the global step the member had reached, from 0.
    """

    stage: str | None = None
    rank: int | None = None
    host: str | None = None
    attempt: int | None = None
    step: int | None = None

    def __str__(self) -> str:
        known = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ", ".join(f"{name} {value}" for name, value in known if value is not None)


class SparkdlError(Exception):
    """Anything sparkdl raises on purpose.

    Args:
        message: what happened, what was expected and what to do about it.
        place: where it happened.
        trace: the original traceback as text, when the failure happened on a member.
    """

    def __init__(self, message: str, *, place: Place | None = None, trace: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.place = place or Place()
        self.trace = trace

    @property
    def stage(self) -> str | None:
        """What was being done when it happened."""
        return self.place.stage

    @property
    def rank(self) -> int | None:
        """The rank of the member it happened on."""
        return self.place.rank

    @property
    def host(self) -> str | None:
        """The host name of the member it happened on."""
        return self.place.host

    @property
    def attempt(self) -> int | None:
        """The attempt it happened in, from 0."""
        return self.place.attempt

    @property
    def step(self) -> int | None:
        """The global step the member had reached."""
        return self.place.step

    def __str__(self) -> str:
        where = f" [{self.place}]" if str(self.place) else ""
        trace = f"\n\n{self.trace.rstrip()}" if self.trace else ""
        return f"{self.message}{where}{trace}"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.place, self.trace)


def _rebuild(kind: type[SparkdlError], message: str, place: Place, trace: str | None) -> SparkdlError:
    return kind(message, place=place, trace=trace)


class InvalidInput(SparkdlError, ValueError):
    """The user's configuration or data cannot be used; trying again will not help."""


class CheckpointDamaged(SparkdlError):
    """A checkpoint is not what was committed: a file of it is missing, cut short or changed."""


class Fenced(SparkdlError):
    """A newer attempt of the run has begun, so this one may no longer commit."""


class ClusterUnavailable(SparkdlError):
    """The cluster cannot supply the gang, or not within the time allowed."""


class MemberFailed(SparkdlError):
    """Code on a member raised; ``trace`` holds the member's own traceback."""


class MemberLost(SparkdlError):
    """A member's process or host went away without a word."""


class Resized(SparkdlError):
    """A gang was ended to begin again at once with another number of members; it is no failure, and no user sees it."""


class PeerLost(SparkdlError):
    """A member could go no further because another member had gone; never the first cause."""


class Stopped(SparkdlError):
    """The run was asked to stop and has stopped; the message says at which step it was saved, if it was."""


def cause_of(error: BaseException) -> Cause:
    """The error as plain data."""
    message = error.message if isinstance(error, SparkdlError) else str(error)
    return type(error).__name__, message, "".join(traceback.format_exception(error))


def error_of(cause: Cause, place: Place, *, before: str = "") -> SparkdlError:
    """The error to raise on the driver, without the traceback if the message says all.

    Args:
        cause: of the error on the worker.
        place: where it happened.
        before: begins the message.
    """
    kind, message, trace = cause
    known = globals().get(kind)
    if isinstance(known, type) and issubclass(known, SparkdlError):
        return known(before + message, place=place, trace=None if issubclass(known, (InvalidInput, Stopped)) else trace)
    return MemberFailed(f"{before}{kind}: {message}", place=place, trace=trace)
