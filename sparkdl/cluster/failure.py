"""Failures of workers as plain data, and the first cause among several."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import cloudpickle

from sparkdl.cluster.group.peers import is_peer_failure
from sparkdl.errors import ErrorContext, SparkdlError, WorkerFailed, cause_of, error_of
from sparkdl.telemetry.event import Event, SafeCallback
from sparkdl.telemetry.recorder import EventCounts


@dataclass(frozen=True)
class Failure:
    """A worker's error as plain data: the first cause, or a consequence.

    Attributes:
        kind: the error's class name.
        peer: whether the error only reports, or follows from, the loss of another worker.
        time: when the error occurred, in seconds since the epoch by that worker's clock.
    """

    kind: str
    message: str
    trace: str
    context: ErrorContext
    peer: bool
    time: float

    @staticmethod
    def of(error: BaseException, context: ErrorContext) -> Failure:
        """Record an error, and release all that its traceback references."""
        chain = _chain(error)
        failure = Failure(*cause_of(error), context, any(map(is_peer_failure, chain)), time.time())
        for link in chain:  # a process group among the locals of its traceback would keep its peers waiting
            traceback.clear_frames(link.__traceback__)
            link.__traceback__ = None
        gc.collect()
        return failure

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Failure:
        """Restore a failure from ``to_json``."""
        return Failure(**{**values, "context": ErrorContext(**values["context"])})

    def to_json(self) -> dict[str, Any]:
        """The failure as plain data."""
        return asdict(self)

    def error(self) -> SparkdlError:
        """The error that the driver raises."""
        return error_of((self.kind, self.message, self.trace), self.context)


@dataclass(frozen=True)
class WorkerResult:
    """The result of a worker: a pickled value, or a failure.

    Attributes:
        value: the pickled return value of the work.
        failure: why the worker failed; None if it succeeded.
        seconds: wall time by stage.
        counts: delivery counts of the worker's events, which the driver compares with the events it received.
    """

    rank: int
    value: bytes | None = None
    failure: Failure | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    counts: EventCounts = field(default_factory=EventCounts)


def raise_first_cause(
    results: Sequence[WorkerResult], listener: Callable[[Event], None] | None = None, *, attempt: int = 0
) -> list[Any]:
    """Return the workers' values in rank order, or raise the first cause.

    Args:
        results: of the workers, in any order.
        listener: gets an ``outcome`` event per worker: the ``seconds`` of its stages, and its delivery counts.
        attempt: the number of the attempt.

    Raises:
        SparkdlError: the earliest failure that is not a lost peer; if all are, the earliest.
    """
    callback = SafeCallback(listener or (lambda event: None))
    for result in results:
        payload = {"seconds": result.seconds, **vars(result.counts)}
        callback(Event("outcome", result.rank, attempt, time.time(), None, payload))
    failures = [result.failure for result in results if result.failure is not None]
    if failures:
        raise first_cause(failures).error()
    return [_value(result) for result in sorted(results, key=lambda result: result.rank)]


def first_cause(failures: Sequence[Failure]) -> Failure:
    """The failure from which the others follow."""
    return min(failures, key=lambda failure: (failure.peer, failure.time))


def _value(result: WorkerResult) -> Any:
    try:
        return cloudpickle.loads(result.value)
    except Exception as error:
        message = f"the driver cannot unpickle the result of rank {result.rank}: {type(error).__name__}: {error}"
        raise WorkerFailed(message, context=ErrorContext("result", result.rank)) from error


def _chain(error: BaseException) -> list[BaseException]:
    """The error and its causes and contexts, each once: ``raise error from error`` is legal."""
    chain: dict[int, BaseException] = {}
    stack: list[BaseException | None] = [error]
    while stack:
        link = stack.pop()
        if link is not None and id(link) not in chain:
            chain[id(link)] = link
            stack += [link.__cause__, link.__context__]
    return [*chain.values()]
