"""sparkdl's exceptions, and the context in which they were raised.

Invalid user input raises ``InvalidInput``, before anything is launched if possible. If a worker fails, the driver
raises the first cause, once, with its stage, rank, host, attempt and step.
"""

from __future__ import annotations

import traceback
from dataclasses import asdict, astuple, dataclass
from functools import partial

__all__ = [
    "CheckpointDamaged",
    "ClusterUnavailable",
    "ErrorContext",
    "Fenced",
    "InvalidInput",
    "PeerLost",
    "Resized",
    "SessionLost",
    "SparkdlError",
    "Stopped",
    "WorkerFailed",
    "WorkerLost",
]

Cause = tuple[str, str, str]
"""Class name, message and traceback of an error, as a worker sends it to the driver."""


@dataclass(frozen=True)
class ErrorContext:
    """Context of an error; unknown fields are None.

    Attributes:
        stage: the stage of the work, for example ``"feed"`` or ``"train"``.
        rank: the worker's rank in the gang.
        host: the worker's host name.
        attempt: the gang's attempt, from 0.
        step: the global step that the worker had reached, from 0.
    """

    stage: str | None = None
    rank: int | None = None
    host: str | None = None
    attempt: int | None = None
    step: int | None = None

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in asdict(self).items() if value is not None)


class SparkdlError(Exception):
    """Base of all exceptions that sparkdl raises on purpose.

    Args:
        message: the failure, the expected input and the remedy.
        context: where it was raised; its fields are also attributes of the error; default: unknown.
        trace: the worker's traceback as text; default: none.
    """

    stage: str | None
    rank: int | None
    host: str | None
    attempt: int | None
    step: int | None

    def __init__(self, message: str, *, context: ErrorContext | None = None, trace: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.context = context or ErrorContext()
        self.trace = trace
        self.stage, self.rank, self.host, self.attempt, self.step = astuple(self.context)

    def __str__(self) -> str:
        where = f" [{self.context}]" if str(self.context) else ""
        trace = f"\n\n{self.trace.rstrip()}" if self.trace else ""
        return f"{self.message}{where}{trace}"

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), self.message, context=self.context, trace=self.trace), ()


class InvalidInput(SparkdlError, ValueError):
    """The user's configuration or data is invalid; a retry cannot help."""


class CheckpointDamaged(SparkdlError):
    """A file of a committed checkpoint is missing, truncated or changed."""


class Fenced(SparkdlError):
    """A newer attempt of the run has begun, so this attempt may no longer commit."""


class ClusterUnavailable(SparkdlError):
    """The cluster cannot supply the gang, or not in time."""


class SessionLost(ClusterUnavailable):
    """The server of Spark Connect has gone, or ended the session; a fit needs a new session."""


class WorkerFailed(SparkdlError):
    """The code on a worker raised; ``trace`` holds the worker's traceback."""


class WorkerLost(SparkdlError):
    """A worker's process or host disappeared without reporting an error."""


class Resized(SparkdlError):
    """The gang ends to restart at once with another number of workers; the supervisor handles it, no user sees it."""


class PeerLost(SparkdlError):
    """A worker could not continue because another worker had gone; never the first cause."""


class Stopped(SparkdlError):
    """The run stopped on request; if workers saved, the message gives the step of the newest checkpoint, if any."""


def cause_of(error: BaseException) -> Cause:
    """Convert an error to plain data."""
    message = error.message if isinstance(error, SparkdlError) else str(error)
    return type(error).__name__, message, "".join(traceback.format_exception(error))


def error_of(cause: Cause, context: ErrorContext, *, before: str = "") -> SparkdlError:
    """Convert a worker's error to the exception that the driver raises; ``before`` is a prefix of its message.

    ``InvalidInput`` and ``Stopped`` carry no traceback: their message is enough.
    """
    kind, message, trace = cause
    known = globals().get(kind)
    if isinstance(known, type) and issubclass(known, SparkdlError):
        shown = None if issubclass(known, (InvalidInput, Stopped)) else trace
        return known(before + message, context=context, trace=shown)
    return WorkerFailed(f"{before}{kind}: {message}", context=context, trace=trace)
