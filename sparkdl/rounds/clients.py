"""The federated clients of a shard and their rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparkdl.data.columns import InputColumn
from sparkdl.data.shard import Shard, numbers
from sparkdl.errors import InvalidInput
from sparkdl.rounds.evaluate import as_only_shard
from sparkdl.training.loss import Criterion


@dataclass(frozen=True)
class Clients:
    """The clients of a shard whose rows have a positive weight, in the order of their ids."""

    shard: Shard  # the rows, as the only shard
    ids: Tensor  # int64 [clients]
    rows: Tensor  # positions of the shard's rows, grouped by client
    bounds: Tensor  # first and past-the-end index into ``rows``, [clients, 2]

    @staticmethod
    def of(shard: Shard, name: str, criterion: Criterion) -> Clients:
        """The clients of a shard by its client column ``name``, which must hold integers; else raises InvalidInput."""
        column = _checked(shard, name)
        shard = as_only_shard(shard, criterion)
        stored = torch.arange(shard.rows) if shard.order is None else shard.order.long()
        ordered, rows = torch.sort(numbers(shard.tensors, column.name)[stored].long(), stable=True)
        ids, counts = torch.unique_consecutive(ordered, return_counts=True)
        owners = torch.repeat_interleave(torch.arange(len(ids)), counts)
        masses = None if shard.denominators is None else shard.denominators[stored[rows]]
        weighing = torch.bincount(owners, masses, minlength=len(ids)) > 0
        last = counts.cumsum(0)
        bounds = torch.stack([last - counts, last], 1)
        return Clients(shard, ids[weighing], rows, bounds[weighing])

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[int, Shard]:
        """A client's id, and its rows as a shard of their own."""
        first, last = self.bounds[index].tolist()
        return int(self.ids[index]), self.shard.subset(self.rows[first:last], (last - first,))


def _checked(shard: Shard, name: str) -> InputColumn:
    column = shard.columns.client
    if column is None or column.name != name:
        actual = "there is no client column" if column is None else f"the client column is {column.name!r}"
        raise InvalidInput(
            f"the algorithm has client={name!r}, and {actual}; expected columns with client=InputColumn({name!r})."
        )
    ids = numbers(shard.tensors, name)
    if ids.is_floating_point():
        raise InvalidInput(
            f"the client column {name!r} has dtype {str(ids.dtype).removeprefix('torch.')}, which rounds large ids; "
            f"expected integers, as InputColumn({name!r}, 'int64')."
        )
    return column
