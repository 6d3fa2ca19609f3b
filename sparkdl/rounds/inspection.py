"""The look at the parts before the first round: what rows they have, and what the model makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparkdl.cluster.tasks import Jobs, Tensors
from sparkdl.data.batch import arguments
from sparkdl.data.batching import stored_batch
from sparkdl.data.columns import Columns
from sparkdl.data.fingerprint import fingerprint
from sparkdl.data.sampler import generator
from sparkdl.data.shard import Part
from sparkdl.data.transforms import Transforms
from sparkdl.errors import InvalidInput
from sparkdl.rounds import add
from sparkdl.rounds.evaluate import alone
from sparkdl.training.labels import Classes, check_bounds, label_bounds
from sparkdl.training.objective import Objective, forward, trained

_PROBE = 2  # rows that are put through the model


@dataclass(frozen=True)
class Seen:
    """What there is to train on.

    Attributes:
        fingerprints: of every part's rows, as text.
        training: training rows of every part.
        validation: validation rows of every part.
        inputs: shape and dtype of a row of each of the model's inputs; None where they have several shapes.
        output: shape of a row of the model's output; None where that is no tensor.
    """

    fingerprints: tuple[str, ...]
    training: tuple[int, ...]
    validation: tuple[int, ...]
    inputs: list[tuple[list[int], str]] | None
    output: list[int] | None


@dataclass(frozen=True)
class Look:
    """Looks at a part; a ``RoundWork`` whose notes say it all.

    Attributes:
        objective: what is minimised.
        classes: what labels are checked for; None where they are no class indices.
        transforms: what batches go through before they reach the model.
    """

    objective: Objective
    classes: Classes | None = None
    transforms: Transforms | None = None

    def map(self, state: Any, part: Part) -> tuple[Tensors, Any]:
        """See ``RoundWork``."""
        held = 0 if part.columns.validation is None else len(part.split()[1])
        bounds = None if self.classes is None else label_bounds(part, self.classes)
        note = {"fingerprint": str(fingerprint(part)), "rows": (part.rows - held, held), "bounds": bounds}
        return {}, note | {"columns": part.columns} | self._probe(part)

    def reduce(self, one: Tensors, other: Tensors) -> Tensors:
        """See ``RoundWork``."""
        return add(one, other)

    def _probe(self, part: Part) -> dict[str, Any]:
        """What the model makes of the first few rows."""
        found: dict[str, Any] = {"inputs": None, "output": None}
        if not part.rows:
            return found
        criterion = self.objective.criterion()
        own = alone(part, criterion)
        with torch.random.fork_rng(devices=[]):
            batch = stored_batch(own, _probed(own))
            batch = self.transforms(batch, generator(0)) if self.transforms else batch
            output = forward(self.objective.build().eval(), batch.inputs)
            if batch.weight:  # else there is no mean
                trained(criterion(output, batch))
        if all(isinstance(each, Tensor) for each in batch.inputs):
            found["inputs"] = [
                (list(each.shape[1:]), str(each.dtype).removeprefix("torch.")) for each in arguments(batch.inputs)
            ]
        found["output"] = list(output.shape[1:]) if isinstance(output, Tensor) else None
        return found


def _probed(part: Part) -> Tensor:
    """Stored positions of the first few rows: of those that weigh anything, where there are so many."""
    positions = torch.arange(min(_PROBE, part.rows))
    if part.masses is not None:
        weighs = (part.masses if part.order is None else part.masses.index_select(0, part.order)) > 0
        positions = torch.cat([torch.nonzero(each).flatten()[:_PROBE] for each in (weighs, ~weighs)])[:_PROBE]
    return positions if part.order is None else part.order[positions]


def look(jobs: Jobs, work: Look) -> Seen:
    """Look at all parts.

    Raises:
        InvalidInput: there are no rows to train on, no validation rows although there is a column for them, or labels
            that cannot be.
        MemberFailed: the model or the loss does not take the rows.
    """
    _, notes = jobs.run(work, {})
    training, validation = (tuple(note["rows"][kind] for note in notes) for kind in (0, 1))
    columns: Columns = notes[0]["columns"]
    if work.classes is not None:
        check_bounds([note["bounds"] for note in notes], columns, work.classes)
    if not sum(training):
        raise InvalidInput("there are no rows to train on: every row is a validation row.")
    if columns.validation is not None and not sum(validation):
        raise InvalidInput(
            "there is a validation column, but no row is a validation row; expected some, or no such column."
        )
    inputs, output = (
        next((note[name] for note in notes if note[name] is not None), None) for name in ("inputs", "output")
    )
    return Seen(tuple(note["fingerprint"] for note in notes), training, validation, inputs, output)
