"""What a task does that trains a PyTorch member: draw its rows, train as a gang of one, keep what came of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from sparkdl.cluster.group.world import World
from sparkdl.cluster.tasks import Tensors
from sparkdl.data.fingerprint import fingerprint
from sparkdl.data.shard import Part, numbers
from sparkdl.ensembles.members.store import Kept
from sparkdl.ensembles.resampling.bootstrap import Draw
from sparkdl.errors import InvalidInput, MemberFailed
from sparkdl.telemetry.emit import record
from sparkdl.training.loop import Training, train

BREATH = 1.0
"""Seconds between two tries to keep a member."""

_TRIES = 3


@dataclass(frozen=True)
class MemberWork:
    """Trains members; see ``sparkdl.cluster.tasks.Jobs.each``.

    Attributes:
        trainings: what each member does, by its index.
        draws: which rows each is given, by its index.
        kept: where a finished member is kept; None where it is returned.
    """

    trainings: dict[int, Training]
    draws: dict[int, Draw]
    kept: Kept | None

    def map(self, index: Any, part: Part) -> tuple[Tensors, Any]:
        """Train a member, unless it is finished; the note has the member if it is not kept.

        The note says that it was trained where an earlier attempt of this task has finished it, too.
        """
        rows = str(fingerprint(part)) if part.count > 1 else None  # of members of a part alone
        found = None if self.kept is None else self.kept.read(index)
        if found is not None:
            _check_rows(found["rows"], rows, index)
            return {}, {"trained": self.kept is not None and found["fit"] == self.kept.token, "state": None}
        if self.kept is not None:
            self.kept.check()  # rather than after hours of training
        start = time.monotonic()
        trained = train(World(), _alone(drawn(part, self.draws[index])), self.trainings[index])
        state = {
            "weights": torch.frombuffer(bytearray(trained.weights), dtype=torch.uint8),
            "history": trained.history,
            "report": trained.report,
            "seconds": time.monotonic() - start,
            "rows": rows,
            "fit": None if self.kept is None else self.kept.token,  # the one in which it was trained
        }
        if self.kept is not None:
            _keep(self.kept, index, state)
        record("member", member=index, seconds=state["seconds"])
        return {}, {"trained": True, "state": state if self.kept is None else None}

    def reduce(self, one: Tensors, other: Tensors) -> Tensors:
        """Nothing is reduced."""
        raise NotImplementedError


def drawn(part: Part, draw: Draw) -> Part:
    """The rows of a draw, each as often as it is drawn, in the order of their ids.

    Args:
        part: some rows, with their ids.
        draw: where it is of training rows alone, validation rows stay as they are.
    """
    identity = part.columns.row_id
    assert identity is not None
    ids = numbers(part.tensors, identity.name)
    counts = torch.from_numpy(draw.counts((ids if part.order is None else ids[part.order]).numpy()))
    if draw.training_only and part.columns.validation is not None:
        counts[part.split()[1]] = 1
    positions = torch.arange(part.rows).repeat_interleave(counts)
    return part.subset(positions, (len(positions),))


def _alone(part: Part) -> Part:
    return replace(part, index=0, count=1, parts=(part.rows,))


def _keep(kept: Kept, index: int, state: dict[str, Any]) -> None:
    """Keep a member; what a disk or a network refuses is tried again, for to fail would cost the training.

    Raises:
        MemberFailed: it is refused every time. An OSError would end the other members with this one.
    """
    for left in reversed(range(_TRIES)):
        try:
            kept.write(index, state)
            return
        except OSError as error:
            if not left:
                raise MemberFailed(f"it is trained, but cannot be kept: {type(error).__name__}: {error}") from error
        time.sleep(BREATH)


def _check_rows(before: str | None, now: str | None, index: int) -> None:
    if before != now:
        raise InvalidInput(
            f"member {index} was trained on other rows than partition {index} has now; take another runDir, or the "
            "same partitions: write them to a table, or give parts by repartition(n, column)."
        )
