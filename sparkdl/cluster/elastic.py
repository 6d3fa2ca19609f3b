"""Elastic gangs: choose the number of workers of each attempt.

An attempt starts with all workers, or after ``elastic_timeout`` seconds with those that fit, from ``min_size``. A small
gang runs until all workers fit; then the next checkpoint at an epoch's end ends the attempt by ``Resized``, which is no
failure and does not count as a restart. If a launch fails although the cluster reported capacity, half as many workers
start at once. If no events reach the driver, or the work records none, a small gang stays small.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from queue import Empty, SimpleQueue
from typing import Annotated, Any

from sparkdl.cluster.cancellation import CancellationToken
from sparkdl.cluster.protocol import Capacity, Cluster, Listener
from sparkdl.cluster.shutdown import pause
from sparkdl.errors import ClusterUnavailable, Resized, SessionLost, SparkdlError
from sparkdl.io.fields import NonNegative, checked, within
from sparkdl.io.threads import watching
from sparkdl.telemetry.event import Event

logger = logging.getLogger(__name__)

_POLL = 0.5  # seconds between two queries of the capacity while an attempt waits for it
_POLL_RUNNING = 5.0  # seconds between two queries of the capacity while a small gang runs
_SILENT = 1.0  # seconds of waiting that are not reported


class SizePolicy:
    """Size policy of elastic gangs, without a cluster and a clock.

    Args:
        least: minimum number of workers of an attempt.
        most: requested number of workers.
        wait: seconds of missing capacity before a smaller gang starts.
        multiple: a divisor of each attempt's number of workers, and of ``least`` and ``most``.

    Attributes:
        refused: workers that the cluster reported capacity for and could not supply, since other jobs hold the slots or
            an executor died; None to trust the reported capacity.
    """

    def __init__(self, least: int, most: int, wait: float, multiple: int = 1) -> None:
        self.least, self.most, self.wait, self.multiple = least, most, wait, multiple
        self.refused: int | None = None
        self._short: float | None = None  # since when capacity for all is missing

    def goal(self, capacity: Capacity) -> int:
        """Workers of a full gang: all, or the most that the configuration allows."""
        return self.most if capacity.ever is None else min(self.most, self._at_least(capacity.ever))

    def full(self, capacity: Capacity, now: float) -> bool:
        """Whether a full gang fits at time ``now``, in seconds of a monotonic clock."""
        if capacity.now is None:
            return False
        if self.refused is not None and capacity.now < self.refused:
            self.refused = None  # the cluster no longer counts a lost executor
        if capacity.now < self.goal(capacity):
            self._short = now if self._short is None else self._short
            return False
        self._short = None
        return self.refused is None

    def choose(self, capacity: Capacity, now: float) -> int | None:
        """Workers of the next attempt; None to wait and query again."""
        goal, full = self.goal(capacity), self.full(capacity, now)
        if self.refused is not None:
            return self._at_least(self.refused // 2)
        if full or capacity.now is None or (capacity.ever is not None and capacity.ever < self.least):
            return goal  # the cluster itself raises if the gang can never fit
        if self._short is None or now - self._short < self.wait:
            return None
        return self._at_least(capacity.now)

    def _at_least(self, workers: int) -> int:
        return max(workers - workers % self.multiple, self.least)


class Elastic:
    """Chooses the sizes of a gang's attempts, and ends a small attempt once all workers fit.

    Args:
        cluster: where the gang runs.
        least: minimum number of workers of an attempt; None for the cluster's size, and then the cluster itself waits.
        wait: seconds of missing capacity before a smaller gang starts.
        listener: gets ``waiting`` events for missing capacity, and ``resized`` events (``size``, ``of``) for a new
            size.
        multiple: as of ``SizePolicy``.

    Raises:
        InvalidInput: ``least`` is not in 1 to the cluster's size, or ``wait`` is negative.
    """

    def __init__(
        self,
        cluster: Cluster,
        least: int | None,
        wait: float,
        listener: Listener | None = None,
        *,
        multiple: int = 1,
    ) -> None:
        checked(least, Annotated[int, within(1, cluster.size)] | None, "min_size")
        checked(wait, NonNegative, "elastic_timeout")
        self._cluster = cluster
        self._sizes = None if least in (None, cluster.size) else SizePolicy(least or 1, cluster.size, wait, multiple)
        self._listener = listener
        self._last = cluster.size
        self._warned = False

    def choose(self, attempt: int) -> int:
        """Workers of the next attempt; waits for capacity.

        Raises:
            Stopped: a stop was requested meanwhile.
            SparkdlError: the cluster can run no gang, whatever its size.
        """
        sizes = self._sizes
        if sizes is None:
            return self._cluster.size
        start = time.monotonic()
        while True:
            capacity, now = self._cluster.capacity(), time.monotonic()
            size = sizes.choose(capacity, now)
            if size is not None:
                break
            if now - start > _SILENT:
                what = f"capacity for {sizes.goal(capacity)} workers; {capacity.now} fit now"
                emit_from_driver(self._listener, "waiting", attempt, what=what, seconds=now - start)
            pause(_POLL)
        if not self._warned and capacity.ever is not None and sizes.least <= capacity.ever < sizes.most:
            self._warned = True
            warnings.warn(
                f"the configuration allows {capacity.ever} workers at a time, so the gang of {sizes.most} has "
                f"{capacity.ever}. Add executors or cores, or lower numWorkers.",
                stacklevel=3,
            )
        if size != self._last:
            logger.warning("attempt %d has %d of %d workers", attempt, size, sizes.most)
            emit_from_driver(self._listener, "resized", attempt, size=size, of=sizes.most)
        self._last = size
        return size

    @contextmanager
    def attempt(self, size: int, cancellation: CancellationToken, listener: Listener) -> Iterator[Listener]:
        """Run an attempt of ``size`` workers in the block; yields the listener to run it with.

        Raises:
            Resized: the next attempt follows at once, with another number of workers.
        """
        sizes = self._sizes
        if sizes is None:
            yield listener
            return
        growing: AbstractContextManager[Listener] = nullcontext(listener)
        if size < sizes.most:
            growing = _growing(self._cluster, sizes, size, cancellation, listener)
        try:
            with growing as receive:
                yield receive
        except ClusterUnavailable as error:
            if size == sizes.least or isinstance(error, SessionLost):
                raise
            sizes.refused = size
            raise Resized(f"the cluster could not supply {size} workers: {error.message}") from error
        except SparkdlError:
            sizes.refused = None  # capacity may have changed while the gang ran
            raise


def emit_from_driver(listener: Listener | None, kind: str, attempt: int, **payload: Any) -> None:
    """Pass an event of the driver to a listener, if there is one."""
    if listener is not None:
        listener(Event(kind, -1, attempt, time.time(), None, payload))


@contextmanager
def _growing(
    cluster: Cluster, sizes: SizePolicy, size: int, cancellation: CancellationToken, listener: Listener
) -> Iterator[Listener]:
    full = threading.Event()  # all workers fitted at the last query
    news: SimpleQueue[bool | None] = SimpleQueue()  # True: an epoch has ended; None: the attempt has

    def receive(event: Event) -> None:
        committed = event.payload.get("pinned") and not event.payload.get("trouble")
        if full.is_set() and (event.kind, event.rank) == ("checkpoint", 0) and committed:
            news.put(True)
        listener(event)

    def watch_capacity(_: threading.Event) -> None:
        while True:
            try:
                epoch_ended = news.get(timeout=_POLL_RUNNING)
            except Empty:
                epoch_ended = False
            if epoch_ended is None or not query(epoch_ended):
                return

    def query(epoch_ended: bool) -> bool:
        try:
            capacity = cluster.capacity()
        except Exception as error:  # the session may be stopping: the gang keeps its size, or ends by itself
            logger.warning("the gang stays small, since its cluster reports no capacity: %s", error)
            return False
        goal = sizes.goal(capacity)
        if not sizes.full(capacity, time.monotonic()) or goal <= size:
            full.clear()
            return True
        full.set()
        if epoch_ended:
            cancellation.end(Resized(f"the cluster has capacity for {goal} workers again; the attempt had {size}."))
        return not epoch_ended

    with watching(watch_capacity, "sparkdl-elastic"):
        try:
            yield receive
        finally:
            news.put(None)
