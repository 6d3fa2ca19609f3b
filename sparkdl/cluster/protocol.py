"""The protocol of a cluster, which runs gangs and rounds of tasks.

A cluster runs a gang once and returns the values of its members. It restarts nothing: a gang that fails raises its
first cause, and the cluster ends the members that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from sparkdl.cluster.cancellation import Guard
from sparkdl.cluster.tasks import Jobs
from sparkdl.cluster.worker import Work
from sparkdl.data.columns import Columns
from sparkdl.errors import InvalidInput
from sparkdl.telemetry.event import Event

Listener = Callable[[Event], None]
"""Called with each event that a member records."""


@dataclass(frozen=True)
class Slots:
    """Members that there is room for at a time, whether or not a gang takes that room already.

    Attributes:
        now: on the machines that are there; None where that cannot be told.
        ever: that the configuration allows for; None where it sets no bound.
    """

    now: int | None
    ever: int | None


class Cluster(Protocol):
    """Where a gang runs."""

    @property
    def size(self) -> int:
        """Members of a gang, unless it is asked for with fewer."""

    def room(self) -> Slots:
        """How many members there is room for; cheap enough to ask every few seconds, from any thread.

        Raises:
            InvalidInput: the configuration is one in which no gang runs, whatever its size.
            ClusterUnavailable: the same.
        """

    def gang(
        self,
        work: Work,
        data: Any = None,
        columns: Columns | Sequence[str] | None = None,
        *,
        listener: Listener | None = None,
        attempt: int = 0,
        guard: Guard | None = None,
        size: int | None = None,
    ) -> list[Any]:
        """Run ``work(world, part)`` on every member at once, all of them alive together.

        Args:
            work: called on every member with its world and its part of the data (None without data).
            data: what the members read; a DataFrame on Spark, else a ``pyarrow.Table``, a dataset, a dict of
                arrays, or a list with one table for each member.
            columns: which columns become which tensors; None takes all as inputs.
            listener: called on this side with each event that a member records, one call at a time.
            attempt: which attempt of a run this is; keys and events carry it.
            guard: asks members for heartbeats, and may end the gang.
            size: members of this gang, at most the cluster's ``size``, which is the default.

        Returns:
            What the members returned, in rank order.

        Raises:
            InvalidInput: the data or the configuration cannot be used.
            ClusterUnavailable: the cluster cannot supply the members.
            MemberFailed: the work raised on a member; of several errors the first cause.
            MemberLost: a member's process went away.
            SparkdlError: the guard ended the gang, with its reason.
        """

    def map_reduce(
        self,
        data: Any,
        columns: Columns | Sequence[str] | None = None,
        *,
        parts: int | None = None,
        shuffle: bool = True,
        listener: Listener | None = None,
    ) -> AbstractContextManager[Jobs]:
        """Deal out the data and pack them, for rounds of tasks that need not be alive together.

        Args:
            data: as for ``gang``.
            columns: as for ``gang``; with a client column all rows of a client come into one part.
            parts: into how many parts; the cluster's ``size`` by default.
            shuffle: False leaves the rows of a DataFrame in their partitions, and takes no heed of ``parts``.
            listener: as for ``gang``; the rank of a task's event is the number of its part, or its index.

        Returns:
            A block in which rounds run; see ``sparkdl.cluster.tasks``.

        Raises:
            InvalidInput: the data cannot be used.
        """


def gang_size(wanted: int | None, most: int) -> int:
    """The members of a gang: as many as are wanted, or by default as the cluster has.

    Raises:
        InvalidInput: so many the cluster has not.
    """
    if wanted is None:
        return most
    if not 1 <= wanted <= most:
        raise InvalidInput(f"a gang of {wanted} members was asked for; expected 1 to {most}, the size of the cluster.")
    return wanted
