"""A gang of one worker in this process, and the launch that clusters without Spark share."""

from __future__ import annotations

import gc
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sparkdl.cluster.cancellation import CancellationToken
from sparkdl.cluster.failure import raise_first_cause
from sparkdl.cluster.group.rendezvous import in_a_group
from sparkdl.cluster.local_tasks import InlineTaskRunner, ShardedData
from sparkdl.cluster.protocol import Capacity, Listener, gang_size
from sparkdl.cluster.tasks import TaskRunner
from sparkdl.cluster.worker import Work, WorkerTask, run_worker
from sparkdl.data.columns import Columns
from sparkdl.data.tables import Batches, split_rows
from sparkdl.errors import InvalidInput
from sparkdl.io.pickling import ship
from sparkdl.telemetry.event import observed
from sparkdl.telemetry.task_recorder import Reporting


class TableCluster(ABC):
    """A cluster whose driver splits tables among the workers."""

    size: int

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
        """Run a gang on this machine, as ``Cluster.gang``."""
        size = gang_size(size, self.size)
        tables, columns = split_rows(data, columns, size)
        task = WorkerTask(ship(work), size, uuid.uuid4().hex, attempt, columns)
        return self._run(task, tables, listener, cancellation or CancellationToken())

    def map_reduce(
        self,
        data: Any,
        columns: Columns | Sequence[str] | None = None,
        *,
        num_shards: int | None = None,
        shuffle: bool = True,
        listener: Listener | None = None,
    ) -> AbstractContextManager[TaskRunner]:
        """Map shards on this machine, as ``Cluster.map_reduce``."""
        return self._jobs(ShardedData(data, columns, num_shards or self.size), listener)

    @abstractmethod
    def _run(
        self, task: WorkerTask, tables: list[Batches], listener: Listener | None, cancellation: CancellationToken
    ) -> list[Any]: ...

    @abstractmethod
    def _jobs(self, data: ShardedData, listener: Listener | None) -> AbstractContextManager[TaskRunner]: ...


class InlineCluster(TableCluster):
    """One worker in this process, for debugging: breakpoints work, and only the work is pickled."""

    size = 1

    def capacity(self) -> Capacity:
        """Capacity for one worker, always."""
        return Capacity(1, 1)

    def _run(
        self, task: WorkerTask, tables: list[Batches], listener: Listener | None, cancellation: CancellationToken
    ) -> list[Any]:
        if in_a_group():
            raise InvalidInput("torch.distributed is initialized in this process already; destroy its group first.")
        with observed(listener) as shown, _frozen():
            result = run_worker(task, 0, "127.0.0.1", lambda line: [line], tables[0], listener=shown)
            if result.failure is not None and result.failure.kind == "KeyboardInterrupt":
                raise KeyboardInterrupt  # Ctrl-C was meant for this process, which is also the worker
            return raise_first_cause([result], shown, attempt=task.attempt)

    @contextmanager
    def _jobs(self, data: ShardedData, listener: Listener | None) -> Iterator[TaskRunner]:
        with observed(listener) as shown:
            yield InlineTaskRunner(data, Reporting(listener=None if listener is None else shown))


@contextmanager
def _frozen() -> Iterator[None]:
    """Exempt existing objects from garbage collection during a gang: torch alone has half a million objects."""
    if gc.get_freeze_count():  # the process exempts its imports for ever
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
