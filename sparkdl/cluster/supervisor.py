"""Restarts of failed gangs: submit, watch, classify the failure, resubmit.

    supervisor = Supervisor(SparkCluster(spark, 4), max_restarts=3)
    values = supervisor.gang(work, df, columns)

Spark aborts a barrier stage when one of its tasks is lost, so a new attempt is a new job. ``world.attempt`` passes its
number to the work, which saves and restores its own checkpoints. These failures do not lead to another attempt:

    InvalidInput, Fenced                                   the input is wrong, or a newer attempt runs
    SessionLost                                            the session of Spark Connect has ended
    Stopped (``sparkdl.cluster.shutdown``)                 the process was asked to stop
    an error of every worker before its first step         the code or the data is wrong
    an error class that failed at the same step before     it would fail again

The error of a single worker leads to a second attempt, since its host may be the cause.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sparkdl.cluster.cancellation import CancellationToken
from sparkdl.cluster.elastic import Elastic, emit_from_driver
from sparkdl.cluster.failure import Failure
from sparkdl.cluster.heartbeat import HeartbeatMonitor, interval
from sparkdl.cluster.protocol import Cluster, Listener
from sparkdl.cluster.shutdown import pause, stop_requested, watch_shutdown
from sparkdl.cluster.worker import Work
from sparkdl.data.columns import Columns
from sparkdl.errors import (
    ClusterUnavailable,
    Fenced,
    InvalidInput,
    Resized,
    SessionLost,
    SparkdlError,
    Stopped,
    WorkerFailed,
)
from sparkdl.io.fields import Natural, NonNegative, Positive, checked
from sparkdl.io.threads import watching
from sparkdl.telemetry.event import Event, observed
from sparkdl.telemetry.log_forwarding import pass_on

logger = logging.getLogger(__name__)

_LONGEST_PAUSE = 60.0  # seconds before an attempt
_POLL = 1.0  # maximum seconds between two checks for lost workers


class Supervisor:
    """Runs a gang, and restarts it until it succeeds or a further attempt would be futile.

    Args:
        cluster: where the gang runs.
        max_restarts: attempts after the first; 0 for none.
        back_off: seconds before the second attempt; they double before each further one, to at most 60.
        heartbeat_timeout: seconds without an event after which a worker counts as lost.
        stall_timeout: seconds without progress after the first step, after which the gang counts as stuck.
        min_size: minimum workers of an attempt if capacity for all is missing; default: none, all are needed. The
            cluster must be able to divide the data among fewer, so one table per worker is invalid.
        multiple: a divisor of each attempt's number of workers, and of ``min_size``.
        elastic_timeout: seconds to wait for full capacity before a smaller gang starts.
        on_stop: called in a thread with the attempt's number when a stop is requested; asks the workers to save and
            raise ``Stopped``. If None, a request cancels the gang at once.

    Attributes:
        failures: failures of the last gang's attempts, in order, without changes of size.
        sizes: number of workers of each attempt of the last gang.
        stop_limit: seconds from a request to stop until the gang is cancelled; 20.

    Raises:
        InvalidInput: a number is out of range.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        max_restarts: int = 3,
        back_off: float = 1.0,
        heartbeat_timeout: float = 60.0,
        stall_timeout: float = 600.0,
        min_size: int | None = None,
        multiple: int = 1,
        elastic_timeout: float = 300.0,
        on_stop: Callable[[int], None] | None = None,
    ) -> None:
        checked(max_restarts, Natural, "max_restarts")
        checked(back_off, NonNegative, "back_off")
        for name, value in {"heartbeat_timeout": heartbeat_timeout, "stall_timeout": stall_timeout}.items():
            checked(value, Positive, name)
        Elastic(cluster, min_size, elastic_timeout, multiple=multiple)  # raises if a value is invalid
        self.failures: list[SparkdlError] = []
        self.sizes: list[int] = []
        self.stop_limit = 20.0
        self._cluster, self._on_stop = cluster, on_stop
        self._max_restarts, self._back_off = max_restarts, back_off
        self._limits, self._elasticity = (heartbeat_timeout, stall_timeout), (min_size, elastic_timeout)
        self._multiple = multiple

    @property
    def size(self) -> int:
        """Workers of a full gang."""
        return self._cluster.size

    def gang(
        self,
        work: Work,
        data: Any = None,
        columns: Columns | Sequence[str] | None = None,
        *,
        listener: Listener | None = None,
        attempt: int = 0,
    ) -> list[Any]:
        """Run a gang with restarts, as ``Cluster.gang``.

        Args:
            work: its world has the attempt's number.
            data: every attempt must compute the same rows.
            columns: which columns become which tensors.
            listener: also gets ``attempt`` events with the ``size``, ``restart`` events with ``cause`` and ``seconds``
                until the next attempt, and the events of ``sparkdl.cluster.elastic.Elastic``.
            attempt: the number of the first attempt.

        Raises:
            Stopped: a stop was requested.
            SparkdlError: the last failure, with the earlier ones in its message.
        """
        with observed(pass_on, listener) as shown:
            return self._attempts(work, data, columns, shown, attempt)

    def _attempts(self, work: Work, data: Any, columns: Any, listener: Listener, attempt: int) -> list[Any]:
        self.failures, self.sizes = [], []
        elastic = Elastic(self._cluster, *self._elasticity, listener, multiple=self._multiple)
        while True:
            size = elastic.choose(attempt)
            self.sizes.append(size)
            emit_from_driver(listener, "attempt", attempt, size=size)
            monitor = _AttemptMonitor(attempt, *self._limits, listener)
            cancellation, ask = monitor.cancellation, None if self._on_stop is None else partial(self._on_stop, attempt)
            shutdown = watch_shutdown(cancellation, ask, waiting=monitor.waiting.is_set, limit=self.stop_limit)
            with watching(monitor.check_workers, "sparkdl-supervisor"), shutdown:
                try:
                    with elastic.attempt(size, cancellation, monitor) as receive:
                        return self._cluster.gang(
                            work, data, columns, listener=receive, attempt=attempt, cancellation=cancellation, size=size
                        )
                except Resized as error:
                    cause, seconds = error.message.rstrip("."), 0.0
                except SparkdlError as error:
                    self._record(error, everywhere=monitor.failed_early == set(range(size)))
                    cause = _line(error)
                    seconds = min(self._back_off * 2 ** (len(self.failures) - 1), _LONGEST_PAUSE)
            logger.warning("attempt %d ended; the next starts in %g s: %s", attempt, seconds, cause)
            emit_from_driver(listener, "restart", attempt, cause=cause, seconds=seconds)
            pause(seconds)
            attempt += 1

    def _record(self, error: SparkdlError, *, everywhere: bool) -> None:
        again = worth_another(error, self.failures, everywhere=everywhere) and stop_requested() is None
        self.failures.append(error)
        if again and len(self.failures) <= self._max_restarts:
            return
        if len(self.failures) == 1:
            raise error
        earlier = "\n".join(f"  {_line(failure)}" for failure in self.failures[:-1])
        message = f"{error.message}\nThis was attempt {len(self.failures)}. Earlier attempts failed with:\n{earlier}"
        raise type(error)(message, context=error.context, trace=error.trace) from error


def worth_another(error: SparkdlError, earlier: Sequence[SparkdlError], *, everywhere: bool) -> bool:
    """Whether another attempt may succeed after a failure.

    ``error`` and ``earlier`` are first causes; ``everywhere``: every worker failed by itself before its first step.
    """
    if isinstance(error, (InvalidInput, Fenced, SessionLost, Stopped)):
        return False
    if isinstance(error, ClusterUnavailable):
        return bool(earlier)  # the slots existed once and may return
    if isinstance(error, WorkerFailed):
        return not everywhere and all(_signature(error) != _signature(failure) for failure in earlier)
    return True


def _signature(error: SparkdlError) -> tuple[type[SparkdlError], str, int | None]:
    return type(error), error.message.partition(":")[0], error.step


def _line(error: SparkdlError) -> str:
    where = f" [{error.context}]" if str(error.context) else ""
    return f"{type(error).__name__}: {error.message.partition(chr(10))[0][:300]}{where}"


class _AttemptMonitor:
    def __init__(self, attempt: int, timeout: float, stall: float, listener: Listener) -> None:
        self._interval = interval(timeout)
        self.cancellation = CancellationToken(self._interval)
        self.failed_early: set[int] = set()  # ranks of workers that failed by themselves before their first step
        self.waiting = threading.Event()  # while the gang waits for slots
        self._monitor = HeartbeatMonitor(attempt, timeout=timeout, stall=stall)
        self._listener = listener
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._monitor.note(event, time.monotonic())
        if event.kind == "waiting":
            self.waiting.set()
        if event.kind == "started":
            self.waiting.clear()
        if event.kind == "failed":
            failure = Failure.from_json(event.payload)
            if not failure.peer and not failure.context.step:
                self.failed_early.add(event.rank)
        if event.kind != "heartbeat":
            self._listener(event)

    def check_workers(self, ended: threading.Event) -> None:
        last = time.monotonic()
        while not ended.wait(min(self._interval / 2, _POLL)):
            now = time.monotonic()
            with self._lock:
                if now - last > 2 * self._interval:  # this process was stopped, for example by a debugger
                    self._monitor.extend_deadlines(now - last)
                lost = self._monitor.lost(now)
            last = now
            if lost is not None:
                self.cancellation.end(lost)
                return
