"""Work of a task that trains a PyTorch member: draw its rows, train as a gang of one, store the member."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from sparkdl.cluster.group.world import World
from sparkdl.cluster.tasks import Tensors
from sparkdl.data.fingerprint import fingerprint
from sparkdl.data.shard import Shard, numbers
from sparkdl.ensembles.members.store import MemberStore
from sparkdl.ensembles.resampling.bootstrap import Draw
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.io.merged_weights import merge_weights
from sparkdl.telemetry.emit import record
from sparkdl.training.loop import Training

POLL_SECONDS = 1.0
"""Seconds between two attempts to store a member."""

_TRIES = 3


@dataclass(frozen=True)
class MemberWork:
    """Trains members, for ``sparkdl.cluster.tasks.TaskRunner.each``.

    Attributes:
        trainings: training of each member, by its index.
        draws: draw of each member, by its index.
        store: store of finished members; None returns them to the driver.
        device: device of the task.
    """

    trainings: dict[int, Training]
    draws: dict[int, Draw]
    store: MemberStore | None
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable

    def map(self, index: Any, shard: Shard) -> tuple[Tensors, Any]:
        """Train a member unless it is stored.

        The note has the member's ``state`` if there is no store, and whether this fit ``trained`` it, also in an
        earlier attempt of the task.
        """
        rows = str(fingerprint(shard)) if shard.count > 1 else None  # only for members of a partition
        if self.store is not None:
            if (stored := self.store.read(index)) is not None:
                if stored["rows"] != rows:
                    raise InvalidInput(
                        f"member {index} was trained on other rows than partition {index} has now; set another runDir, "
                        "or keep the partitions: write them to a table, or call repartition(n, column)."
                    )
                return {}, {"trained": stored["fit"] == self.store.token, "state": None}
            self.store.check_writable()  # fail before hours of training, not after
        shard = drawn(shard, self.draws[index])
        shard = replace(shard, index=0, count=1, shard_rows=(shard.rows,))
        start = time.monotonic()
        with (world := World(device=self.device)).ends:
            trained = self.trainings[index](world, shard)
        state = {
            "weights": torch.frombuffer(bytearray(merge_weights([trained.weights])), dtype=torch.uint8),
            "history": trained.history,
            "report": trained.report,
            "seconds": time.monotonic() - start,
            "rows": rows,
            "fit": None if self.store is None else self.store.token,  # identifies the fit that trained it
        }
        if self.store is not None:
            _write(self.store, index, state)
        record("member", member=index, seconds=state["seconds"])
        return {}, {"trained": True, "state": state if self.store is None else None}

    def reduce(self, left: Tensors, right: Tensors) -> Tensors:
        """Never called: members have no reduction."""
        raise NotImplementedError


def drawn(shard: Shard, draw: Draw) -> Shard:
    """The rows of a draw, repeated as often as drawn, in the order of their ids."""
    column = shard.columns.row_id
    assert column is not None
    ids = numbers(shard.tensors, column.name)
    counts = torch.from_numpy(draw.counts((ids if shard.order is None else ids[shard.order]).numpy()))
    if draw.training_only and shard.columns.validation is not None:
        counts[shard.split()[1]] = 1
    positions = torch.arange(shard.rows).repeat_interleave(counts)
    return shard.subset(positions, (len(positions),))


def _write(store: MemberStore, index: int, state: dict[str, Any]) -> None:
    # A failure would lose the training, and an OSError would also end the other members.
    for left in reversed(range(_TRIES)):
        try:
            store.write(index, state)
            return
        except OSError as error:
            if not left:
                raise WorkerFailed(f"it is trained, but cannot be stored: {type(error).__name__}: {error}") from error
        time.sleep(POLL_SECONDS)
