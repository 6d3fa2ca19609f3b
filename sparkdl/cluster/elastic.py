"""How many members an attempt has: all of them, or as many as there is room for.

    an attempt begins     with all members; or, if there has been too little room for all for ``elastic_wait`` seconds,
                          with as many as there is room for, and at least ``min_size``
    it is a small one     the room is looked at every few seconds. Once there is enough for all, the attempt is ended
                          right after the next checkpoint at an epoch's end, and all begin
    it got no slots       although there seemed to be room: half as many begin at once

So the size changes between epochs only. What makes it change is ``Resized``, which is no failure: another attempt
follows at once and counts for nothing.

The checkpoint is told by an event of kind ``checkpoint`` of rank 0, whose payload has ``pinned: True`` and no
``trouble``. Where no events reach the driver, and in work that records none, a small gang stays small.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import TracebackType

from sparkdl.cluster.cancellation import Guard
from sparkdl.cluster.protocol import Cluster, Listener, Slots
from sparkdl.cluster.shutdown import pause
from sparkdl.errors import ClusterUnavailable, InvalidInput, Resized, SparkdlError
from sparkdl.telemetry.event import Event

logger = logging.getLogger(__name__)

_POLL = 0.5  # seconds between two looks at the room of an attempt that waits for it
_LOOK = 5.0  # seconds between two looks at the room while a small gang runs
_SILENT = 1.0  # seconds of waiting that are not worth a word


class Sizes:
    """The policy alone, without a cluster and without a clock.

    Args:
        least: members without which no attempt begins.
        most: members that are wanted.
        wait: seconds for which there has to be too little room before fewer begin.
    """

    def __init__(self, least: int, most: int, wait: float) -> None:
        self.least, self.most, self.wait = least, most, wait
        self._short: float | None = None  # since when there has been room for fewer than all
        self._refused: int | None = None  # members that could not be had although there seemed to be room for them

    def goal(self, room: Slots) -> int:
        """Members that make a full gang: all, or as many as the configuration can ever give."""
        return self.most if room.ever is None else min(self.most, max(room.ever, self.least))

    def full(self, room: Slots, now: float) -> bool:
        """Whether there is room for a full gang, as far as ``room`` is to be believed.

        Args:
            room: what there is room for.
            now: the time, in seconds of a clock that only goes forward.
        """
        if room.now is None:
            return False
        if self._refused is not None and room.now < self._refused:
            self._refused = None  # a lost executor, which had still been counted, no longer is
        if room.now < self.goal(room):
            self._short = now if self._short is None else self._short
            return False
        self._short = None
        return self._refused is None

    def choose(self, room: Slots, now: float) -> int | None:
        """Members of an attempt that is to begin; None to wait and to look again."""
        goal, full = self.goal(room), self.full(room, now)
        if self._refused is not None:
            return max(self._refused // 2, self.least)
        if full or room.now is None or (room.ever is not None and room.ever < self.least):
            return goal  # of what can never be had the cluster says so itself
        if self._short is None or now - self._short < self.wait:
            return None
        return max(room.now, self.least)

    def refuse(self, size: int) -> None:
        """So many members could not be had: other jobs hold the slots, or the executor is not there any more."""
        self._refused = size

    def forget(self) -> None:
        """Believe the room again."""
        self._refused = None


class Elastic:
    """Chooses the sizes of the attempts of one gang, and ends an attempt that has become too small.

    Args:
        cluster: where the gang runs.
        least: members without which no attempt begins; None for all of them, which leaves the waiting to the cluster.
        wait: seconds for which there has to be too little room before fewer begin.
        listener: gets a ``waiting`` event while there is too little room, and a ``resized`` one, with the ``size`` and
            the size that it is ``of``, where an attempt has another number of members than the one before.

    Raises:
        InvalidInput: ``least`` is no size that a gang can have, or ``wait`` is negative.
    """

    def __init__(self, cluster: Cluster, least: int | None, wait: float, listener: Listener | None = None) -> None:
        if least is not None and not 1 <= least <= cluster.size:
            raise InvalidInput(f"min_size is {least}; expected 1 to {cluster.size}, the size of the cluster.")
        if wait < 0:
            raise InvalidInput(f"elastic_wait is {wait}; expected at least 0 seconds.")
        self._cluster = cluster
        self._sizes = None if least in (None, cluster.size) else Sizes(least or 1, cluster.size, wait)
        self._listener = listener
        self._last = cluster.size
        self._warned = False

    def choose(self, attempt: int) -> int:
        """Members of the attempt that is to begin; waits for room.

        Raises:
            Stopped: the process was asked to stop meanwhile.
            SparkdlError: no gang can run on the cluster, whatever its size.
        """
        if self._sizes is None:
            return self._cluster.size
        began = time.monotonic()
        while True:
            room, now = self._cluster.room(), time.monotonic()
            size = self._sizes.choose(room, now)
            if size is not None:
                break
            if now - began > _SILENT:
                what = f"room for {self._sizes.goal(room)} members, there is room for {room.now}"
                self._tell("waiting", attempt, what=what, seconds=now - began)
            pause(_POLL)
        self._warn(self._sizes, room)
        if size != self._last:
            logger.warning("attempt %d has %d of %d members", attempt, size, self._sizes.most)
            self._tell("resized", attempt, size=size, of=self._sizes.most)
        self._last = size
        return size

    @contextmanager
    def attempt(self, size: int, guard: Guard, listener: Listener) -> Iterator[Listener]:
        """The block in which an attempt runs.

        Args:
            size: its members.
            guard: the attempt's, by which it is ended once there is room for all.
            listener: the attempt's.

        Yields:
            The listener to run the attempt with.

        Raises:
            Resized: another attempt is to follow at once, with another number of members.
        """
        sizes = self._sizes
        if sizes is None:
            yield listener
            return
        try:
            if size == sizes.most:
                yield listener
            else:
                with _Growth(self._cluster, sizes, size, guard, listener) as growth:
                    yield growth
        except ClusterUnavailable as error:
            if size == sizes.least:
                raise
            sizes.refuse(size)
            raise Resized(f"{size} members could not be had: {error.message}") from error
        except SparkdlError:
            sizes.forget()  # the gang ran for a while, in which much may have changed
            raise

    def _warn(self, sizes: Sizes, room: Slots) -> None:
        if not self._warned and room.ever is not None and sizes.least <= room.ever < sizes.most:
            self._warned = True
            warnings.warn(
                f"a gang of {sizes.most} members is wanted, and the configuration allows for {room.ever} at a time: it "
                f"has {room.ever}. Ask for more executors or cores, or for fewer members (numWorkers).",
                stacklevel=4,
            )

    def _tell(self, kind: str, attempt: int, **payload: object) -> None:
        if self._listener is not None:
            self._listener(Event(kind, -1, attempt, time.time(), None, payload))


class _Growth:
    """Listens to an attempt of a small gang, and ends it at an epoch's end once there is room for all."""

    def __init__(self, cluster: Cluster, sizes: Sizes, size: int, guard: Guard, listener: Listener) -> None:
        self._cluster, self._sizes, self._size = cluster, sizes, size
        self._guard, self._listener = guard, listener
        self._full = False  # whether there was room for all at the last look
        self._news: SimpleQueue[str] = SimpleQueue()
        self._thread = threading.Thread(target=self._look, name="sparkdl-elastic", daemon=True)

    def __enter__(self) -> _Growth:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._news.put("the attempt is over")
        self._thread.join()

    def __call__(self, event: Event) -> None:
        if self._full and _ends_epoch(event):
            self._news.put("an epoch is over")
        self._listener(event)

    def _look(self) -> None:
        try:
            while (news := self._next()) != "the attempt is over":
                room = self._cluster.room()
                goal, full = self._sizes.goal(room), self._sizes.full(room, time.monotonic())
                self._full = full and goal > self._size
                if self._full and news == "an epoch is over":
                    self._guard.end(Resized(f"there is room for {goal} members, and {self._size} ran."))
                    return
        except Exception as error:  # the session may be stopping: the gang goes on as it is, or ends by itself
            logger.warning("a gang stays small, as nobody knows what room there is: %s", error)

    def _next(self) -> str | None:
        """What has happened; None where nothing has for a while."""
        try:
            return self._news.get(timeout=_LOOK)
        except Empty:
            return None


def _ends_epoch(event: Event) -> bool:
    if event.kind != "checkpoint" or event.rank != 0:
        return False
    return bool(event.payload.get("pinned")) and not event.payload.get("trouble")
