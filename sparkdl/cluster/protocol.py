"""The protocol of a cluster, which runs gangs and rounds of tasks.

A cluster runs a gang once and returns its workers' values. It restarts nothing: a gang that fails raises its first
cause, and the cluster ends the remaining workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from sparkdl.cluster.cancellation import CancellationToken
from sparkdl.cluster.tasks import TaskRunner
from sparkdl.cluster.worker import Work
from sparkdl.data.columns import Columns
from sparkdl.io.fields import checked, within
from sparkdl.telemetry.event import Event

Listener = Callable[[Event], None]
"""Called with each event that a worker records."""


@dataclass(frozen=True)
class Capacity:
    """Capacity of a cluster in workers, whether free or in use."""

    now: int | None  # slots of the machines that are up; None if unknown
    ever: int | None  # slots that the configuration allows; None if unbounded


class Cluster(Protocol):
    """Where a gang runs."""

    @property
    def size(self) -> int:
        """Workers of a gang, unless ``gang`` asks for fewer."""

    def capacity(self) -> Capacity:
        """Capacity of the cluster; cheap enough to query every few seconds, from any thread.

        Raises:
            InvalidInput, ClusterUnavailable: the configuration can run no gang, whatever its size.
        """

    def gang(
        self,
        work: Work,
        data: Any = None,
        columns: Columns | Sequence[str] | None = None,
        *,
        listener: Listener | None = None,
        attempt: int = 0,
        cancellation: CancellationToken | None = None,
        size: int | None = None,
    ) -> list[Any]:
        """Run ``work(world, shard)`` on all workers of a gang at the same time.

        Args:
            work: called on every worker with its world and its shard (None without data).
            data: a DataFrame on Spark; else a ``pyarrow.Table``, a dataset, a dict of arrays, or a list of a table per
                worker.
            columns: which columns become which tensors; None reads all as inputs.
            listener: called in this process with each event that a worker records, one call at a time.
            attempt: the attempt's number within a run; keys and events carry it.
            cancellation: requests heartbeats, and may cancel the gang.
            size: workers of this gang; default and maximum: the cluster's ``size``.

        Returns:
            The workers' return values, in rank order.

        Raises:
            InvalidInput: the data or the configuration is invalid.
            ClusterUnavailable: the cluster cannot supply the workers.
            WorkerFailed: the work raised on a worker; of several errors the first cause.
            WorkerLost: a worker's process was lost.
            SparkdlError: the cancellation cancelled the gang, with its reason.
        """

    def map_reduce(
        self,
        data: Any,
        columns: Columns | Sequence[str] | None = None,
        *,
        num_shards: int | None = None,
        shuffle: bool = True,
        listener: Listener | None = None,
    ) -> AbstractContextManager[TaskRunner]:
        """Divide the data into shards and pack them, for rounds of independent tasks.

        Args:
            data: as for ``gang``.
            columns: as for ``gang``; with a client column, one shard gets all rows of a client.
            num_shards: number of shards; default: the cluster's ``size``.
            shuffle: if False, a DataFrame's rows stay in their partitions, and ``num_shards`` is ignored.
            listener: as for ``gang``; the rank of a task's event is its shard's number, or its index.

        Returns:
            A block in which rounds run; see ``sparkdl.cluster.tasks``.

        Raises:
            InvalidInput: the data is invalid.
        """


def gang_size(size: int | None, most: int) -> int:
    """The number of workers of a gang; default: ``most``. Raises InvalidInput unless it is in 1 to ``most``."""
    return most if size is None else int(checked(size, Annotated[int, within(1, most)], "size"))
