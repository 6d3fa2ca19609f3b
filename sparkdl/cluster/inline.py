"""A gang of one worker in this process."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from sparkdl.cluster.cancellation import CancellationToken
from sparkdl.cluster.failure import raise_first_cause
from sparkdl.cluster.group.network import Address
from sparkdl.cluster.group.rendezvous import RendezvousSpec
from sparkdl.cluster.group.world import in_a_group
from sparkdl.cluster.local_tasks import inline_jobs
from sparkdl.cluster.protocol import Capacity, Listener, gang_size
from sparkdl.cluster.tasks import TaskRunner
from sparkdl.cluster.worker import Work, WorkerTask, run_worker
from sparkdl.data.columns import Columns
from sparkdl.data.tables import split_rows
from sparkdl.errors import InvalidInput
from sparkdl.io.pickling import ship
from sparkdl.telemetry.task_recorder import Reporting


class InlineCluster:
    """One worker in this process, for debugging: breakpoints work, and only the work is pickled."""

    size = 1

    def capacity(self) -> Capacity:
        """Capacity for one worker, always."""
        return Capacity(1, 1)

    def gang(
        self,
        work: Work,
        data: Any = None,
        columns: Columns | Sequence[str] | None = None,
        *,
        listener: Listener | None = None,
        attempt: int = 0,
        guard: CancellationToken | None = None,
        size: int | None = None,
    ) -> list[Any]:
        """Run the work in this process, as ``Cluster.gang``."""
        gang_size(size, self.size)
        if in_a_group():
            raise InvalidInput("torch.distributed is initialized in this process already; destroy its group first.")
        tables, wanted = split_rows(data, columns, 1)
        task = WorkerTask(ship(work), 1, uuid.uuid4().hex, attempt, wanted)
        meeting = RendezvousSpec(0, 1, task.run, attempt, Address("127.0.0.1"))
        outcome = run_worker(task, meeting, lambda line: [line], tables[0], listener=listener)
        if outcome.failure is not None and outcome.failure.kind == "KeyboardInterrupt":
            raise KeyboardInterrupt  # Ctrl-C was meant for this process, which is also the worker
        return raise_first_cause([outcome], listener, attempt=attempt)

    def map_reduce(
        self,
        data: Any,
        columns: Columns | Sequence[str] | None = None,
        *,
        parts: int | None = None,
        shuffle: bool = True,
        listener: Listener | None = None,
    ) -> AbstractContextManager[TaskRunner]:
        """Map the shards one after the other, as ``Cluster.map_reduce``."""
        return inline_jobs(data, columns, parts or self.size, reporting=Reporting(listener=listener))
