"""Gangs that are run again when they fail: submit, watch, classify the failure, resubmit.

    supervisor = Supervisor(SparkCluster(spark, 4), max_restarts=3)
    values = supervisor.gang(work, df, columns)

Spark gives a barrier stage up when one of its tasks is lost, so a new attempt is a new job. It has its own rendezvous
and its own number, which ``world.attempt`` tells the work: what it has saved, and goes on from, is its own affair.

What is worth another attempt: members that went away, peers that did not answer, members without signs of life, slots
that went with a lost executor. What is not: what the user got wrong, which is

    an InvalidInput, or a newer attempt                          it says so itself
    a request to stop (``sparkdl.cluster.shutdown``)                     it is what was asked for
    an error that every member raised before its first step      it is in the code or in the data
    the same class of error at the same step as once before      it will be there again

An error of one member alone gets a second attempt, for it may lie in that member's host.

An attempt may have fewer members than the one before, or more again: see ``sparkdl.cluster.elastic``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from sparkdl.cluster.cancellation import Guard
from sparkdl.cluster.elastic import Elastic
from sparkdl.cluster.failure import Failure
from sparkdl.cluster.heartbeat import Pulse, interval
from sparkdl.cluster.protocol import Cluster, Listener
from sparkdl.cluster.shutdown import StopWatch, pause, stop_requested
from sparkdl.cluster.worker import Work
from sparkdl.data.columns import Columns
from sparkdl.errors import ClusterUnavailable, Fenced, InvalidInput, MemberFailed, Resized, SparkdlError, Stopped
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.log_forwarding import pass_on

logger = logging.getLogger(__name__)

_LONGEST_PAUSE = 60.0  # seconds before an attempt
_LOOK = 1.0  # seconds at most between two looks for members that are silent


class Supervisor:
    """Runs a gang until it succeeds, or until it is not worth another attempt.

    Args:
        cluster: where the gang runs.
        max_restarts: attempts after the first; 0 for none.
        back_off: seconds before the second attempt, twice as many before each further one, at most 60.
        heartbeat_timeout: seconds without a sign of life after which a member counts as lost.
        stall_timeout: seconds without progress, once there has been some, after which the gang counts as stuck.
        min_size: members with which an attempt begins where there is no room for all; None for none but all. The data
            must be such that the cluster can deal it out to fewer: not one table for each member.
        elastic_wait: seconds to wait for room for all before fewer begin.
        on_stop: called with the number of the attempt, in a thread, when the process is asked to stop: it asks the
            members to save and to raise ``Stopped``. None if they cannot: the gang is then ended at once.

    Attributes:
        failures: why the attempts of the last gang failed, the first one first; those that were only ended for the
            sake of another size are not among them.
        sizes: the members of each attempt of the last gang.
        stop_limit: seconds that the members have for that, after which the gang is ended; 20.

    Raises:
        InvalidInput: a number is not one that can be.
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
        elastic_wait: float = 300.0,
        on_stop: Callable[[int], None] | None = None,
    ) -> None:
        for name, value in (("max_restarts", max_restarts), ("back_off", back_off)):
            if value < 0:
                raise InvalidInput(f"{name} is {value}; expected at least 0.")
        for name, value in (("heartbeat_timeout", heartbeat_timeout), ("stall_timeout", stall_timeout)):
            if value <= 0:
                raise InvalidInput(f"{name} is {value}; expected a number of seconds above 0.")
        Elastic(cluster, min_size, elastic_wait)  # which refuses what cannot be
        self.failures: list[SparkdlError] = []
        self.sizes: list[int] = []
        self._elasticity = min_size, elastic_wait
        self.stop_limit = 20.0
        self._on_stop = on_stop
        self._cluster = cluster
        self._max_restarts = max_restarts
        self._back_off = back_off
        self._limits = heartbeat_timeout, stall_timeout

    @property
    def size(self) -> int:
        """Members of a gang that has all of them."""
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
        """See ``Cluster.gang``.

        Args:
            work: see there; its world knows the attempt.
            data: see there; it must be the same whenever it is computed.
            columns: see there.
            listener: see there; of the supervisor itself it gets an ``attempt`` event with the ``size`` of each, a
                ``restart`` event with the ``cause`` and the seconds until the next, and those of
                ``sparkdl.cluster.elastic.Elastic``.
            attempt: the number of the first attempt.

        Raises:
            Stopped: the process was asked to stop.
            SparkdlError: the failure that was not worth another attempt, or one too many, with those before it.
        """
        self.failures, self.sizes = [], []
        elastic = Elastic(self._cluster, *self._elasticity, listener)
        while True:
            size = elastic.choose(attempt)
            self.sizes.append(size)
            _tell(listener, "attempt", attempt, size=size)
            with _Watch(attempt, *self._limits, listener) as watch, self._stop_watch(watch, attempt):
                try:
                    with elastic.attempt(size, watch.guard, watch) as ear:
                        return self._cluster.gang(
                            work, data, columns, listener=ear, attempt=attempt, guard=watch.guard, size=size
                        )
                except Resized as error:
                    cause, seconds = error.message.rstrip("."), 0.0
                except SparkdlError as error:
                    self._weigh(error, everywhere=watch.failed_early == set(range(size)))
                    cause = _line(error)
                    seconds = min(self._back_off * 2 ** (len(self.failures) - 1), _LONGEST_PAUSE)
            self._pause(attempt, cause, seconds, listener)
            attempt += 1

    def _weigh(self, error: SparkdlError, *, everywhere: bool) -> None:
        """Take a failure down, and raise it where no other attempt is to follow."""
        again = worth_another(error, self.failures, everywhere=everywhere) and stop_requested() is None
        self.failures.append(error)
        if not again or len(self.failures) > self._max_restarts:
            if len(self.failures) == 1:
                raise error
            raise _told(self.failures) from error

    def _stop_watch(self, watch: _Watch, attempt: int) -> StopWatch:
        ask = None if self._on_stop is None else partial(self._on_stop, attempt)
        return StopWatch(watch.guard, ask, waiting=lambda: watch.waiting, limit=self.stop_limit)

    def _pause(self, attempt: int, cause: str, seconds: float, listener: Listener | None) -> None:
        logger.warning("attempt %d ended and another follows in %g s: %s", attempt, seconds, cause)
        _tell(listener, "restart", attempt, cause=cause, seconds=seconds)
        pause(seconds)


def _tell(listener: Listener | None, kind: str, attempt: int, **payload: Any) -> None:
    if listener is not None:
        listener(Event(kind, -1, attempt, time.time(), None, payload))


def worth_another(error: SparkdlError, earlier: Sequence[SparkdlError], *, everywhere: bool) -> bool:
    """Whether a gang that failed so may succeed when it is run again.

    Args:
        error: the first cause of this failure.
        earlier: those of the attempts before.
        everywhere: whether every member failed by itself before its first step.
    """
    if isinstance(error, (InvalidInput, Fenced, Stopped)):
        return False
    if isinstance(error, ClusterUnavailable):
        return bool(earlier)  # what was there once may come back
    if isinstance(error, MemberFailed):
        return not everywhere and all(_signature(error) != _signature(each) for each in earlier)
    return True


def _signature(error: SparkdlError) -> tuple[type[SparkdlError], str, int | None]:
    return type(error), error.message.partition(":")[0], error.step


def _told(failures: Sequence[SparkdlError]) -> SparkdlError:
    """The last failure, which also tells of those before it."""
    last, before = failures[-1], failures[:-1]
    told = "\n".join(f"  {_line(each)}" for each in before)
    message = f"{last.message}\nIt was attempt number {len(failures)}; why those before it failed:\n{told}"
    return type(last)(message, place=last.place, trace=last.trace)


def _line(error: SparkdlError) -> str:
    where = f" [{error.place}]" if str(error.place) else ""
    return f"{type(error).__name__}: {error.message.partition(chr(10))[0][:300]}{where}"


class _Watch:
    """Listens to one attempt, and ends it when a member gives no sign of life or the gang is stuck.

    Attributes:
        guard: what the launcher is given.
        failed_early: ranks of the members that failed by themselves before their first step.
        waiting: whether the gang waits for slots, and no member has started.
    """

    def __init__(self, attempt: int, timeout: float, stall: float, listener: Listener | None) -> None:
        self._every = interval(timeout)
        self.guard = Guard(self._every)
        self.failed_early: set[int] = set()
        self.waiting = False
        self._pulse = Pulse(attempt, timeout=timeout, stall=stall)
        self._listener = listener
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="sparkdl-supervisor", daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def __call__(self, event: Event) -> None:
        pass_on(event)
        with self._lock:
            self._pulse.note(event, time.monotonic())
        if event.kind in ("waiting", "started"):
            self.waiting = event.kind == "waiting"
        if event.kind == "failed":
            failure = Failure.from_json(event.payload)
            if not failure.peer and not failure.place.step:
                self.failed_early.add(event.rank)
        if self._listener is not None and event.kind != "heartbeat":
            self._listener(event)

    def _look(self) -> None:
        looked = time.monotonic()
        while not self._ended.wait(min(self._every / 2, _LOOK)):
            now = time.monotonic()
            with self._lock:
                if now - looked > 2 * self._every:  # this process was stopped, by a debugger for one
                    self._pulse.forgive(now - looked)
                lost = self._pulse.lost(now)
            looked = now
            if lost is not None:
                self.guard.end(lost)
                return
