"""The rows of a gang's tables: look-ups in other workers' rows, and steps of the tables' optimizers.

A look-up of ``k`` distinct ids is two exchanges: ids to the workers that hold the rows, and rows back. A step is two
more, for all tables together: ids, and the sums of the gradients of their rows over the worker's look-ups. All workers
call the tables in the same order. A strategy with servers of its own sets ``served``: its servers then answer look-ups,
and take gradients, when a worker asks, and no worker waits for another one's call.

With ``Table(admit=k)``, the worker that holds a row counts how often all workers looked its id up in training. When a
step ends with a count of at least ``k``, the row gets its initial numbers; before, its gradients are dropped.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.cluster.group.world import Group, World
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import Slice
from sparkdl.telemetry.step_timer import inner_phase
from sparkdl.training.layouts import SentBytes
from sparkdl.training.layouts.table import CHUNK, SEEN, Table, state_sizes, tables_of


@dataclass(frozen=True)
class LookUp:
    """Rows that a pass uses, and whose gradients the backward pass makes.

    Attributes:
        name: of the table.
        ids: distinct ones, ascending.
        rows: ``[ids, d]``, a leaf.
        counts: how often each id occurs, ``[ids]``, if the table admits ids by their number.
    """

    name: str
    ids: Tensor
    rows: Tensor
    counts: Tensor | None


@dataclass(frozen=True)
class RowSums:
    """Sums of the gradients of one table's rows.

    Attributes:
        rows: distinct ones ``[k]``: their ids, or their places in the weight of the worker that holds them.
        gradients: ``[k, d]``.
        counted: rows that were looked up ``[m]``; those that are not admitted yet have no gradient.
        counts: how often, ``[m]``.
    """

    rows: Tensor
    gradients: Tensor
    counted: Tensor
    counts: Tensor


class TableRows:
    """The rows of all tables of a module, on the workers of a group.

    Args:
        module: the module, whose tables hold this worker's rows from now on.
        group: the workers.
        seed: of the initial rows.
        device: of the passes, and so of ids.

    Attributes:
        group: the workers.
        gradients: of this worker's rows in the present step, by the names of the tables that any worker used; with
            ``served`` those of this worker's look-ups, not times its share, which the strategy takes.
        served: returns the rows ``[ids, d]`` of a table for ids by the worker that holds them; None for collectives.
        factor: of the learning rates in the present step.
        most: integers of a message to this worker, and numbers after it, of ``dtype``, at most.
        look_ups: of the present step.
        sent: bytes that this worker has sent in the present step.
        slices: this worker's slices of the weights and of their optimizers' states, by name.
        kinds: classes of the tables' optimizers, by the names of the tables.
    """

    @classmethod
    def of(cls, module: nn.Module, world: World, seed: int) -> TableRows | None:
        """The rows of a module that ``drop_weights`` left without weights; None if it has no table.

        New weights have the dtype of the module's first parameter.
        """
        if not (tables := tables_of(module)):
            return None
        dtype = next(value.dtype for value in module.parameters() if value.is_floating_point())
        for table in tables.values():
            table.held = range(world.rank, table.num_embeddings, world.size)
            table.open(dtype, world.device)
        return cls(module, world.group(), seed, world.device)

    def __init__(self, module: nn.Module, group: Group, seed: int, device: torch.device) -> None:
        self.group, self.sent = group, SentBytes()
        self.gradients: dict[str, RowSums] = {}
        self.served: Callable[[str, Sequence[Tensor]], list[Tensor]] | None = None
        self.factor = 1.0
        self.look_ups: list[LookUp] = []
        self._tables = tables_of(module)
        self._names = {id(table): name for name, table in self._tables.items()}
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        self._seeds: dict[str, int] = {}
        self._seen: dict[str, Tensor] = {}  # how often ids were looked up, [rows], of tables that admit them
        self._device = device
        self.slices: dict[str | int, Slice] = {}
        for name, table in self._tables.items():
            table.hold(group.rank, group.size, self)
            if not (table.filled or all(bool(part.isnan().all()) for part in torch.split(table.weight, CHUNK))):
                raise InvalidInput(
                    f"the factory writes rows of Table {name!r}; expected the rows in the argument init."
                )
            self._seeds[name] = seed + zlib.crc32(name.encode())
            before = table.filled
            if not before:
                table.fill(self._seeds[name])
            if table.admit:
                self._seen[name] = torch.zeros(len(table.held), dtype=torch.int32, device=table.weight.device)
                if before:  # of another training, which admitted the rows that are not zeros
                    self._seen[name][table.weight.any(1)] = table.admit
            sizes = {"weight": (table.embedding_dim,), **state_sizes(table)}
            for key, row in sizes.items():
                ranges = (table.held, *map(range, row))
                self.slices[_joined(name, key)] = Slice((table.num_embeddings, *row), ranges)
            self._optimizers[name] = table.optimizer([table.weight])
        for name, part in module.named_modules(remove_duplicate=False):  # other names of shared tables
            if isinstance(part, Table):
                self.slices[_joined(name, "weight")] = self.slices[_joined(self._names[id(part)], "weight")]
        held = [(2 + 2 * len(table.held), table.weight.numel()) for table in self._tables.values()]
        self.most = sum(ids for ids, _ in held), sum(numbers for _, numbers in held)
        self.dtype = torch.cat([table.weight.detach()[:0].reshape(-1).cpu() for table in self._tables.values()]).dtype
        self._rates = {name: [group["lr"] for group in one.param_groups] for name, one in self._optimizers.items()}
        self.kinds = {name: type(one).__qualname__ for name, one in self._optimizers.items()}

    def look_up(self, table: Table, ids: Tensor, counts: Tensor | None) -> Tensor:
        """The rows of distinct, ascending ids; a pass with gradients keeps them for ``collect``."""
        name = self._names[id(table)]
        if self.group.size == 1 and self.served is None:
            rows = self.rows(name, ids)
        else:
            order, parts = self._by_holder(ids)
            with inner_phase("exchange"):
                if self.served is None:
                    sent = [self.rows(name, asked) for asked in self.group.all_to_all_rows(parts)]
                    answers = self.group.all_to_all_rows(sent, [*map(len, parts)])
                else:
                    answers = sent = self.served(name, parts)  # workers send as much as they get, on average
            joint = torch.cat(answers)
            rows = torch.empty_like(joint)
            rows[order] = joint
            if torch.is_grad_enabled():
                self.count([*parts, *sent])
        if torch.is_grad_enabled():
            self.look_ups.append(LookUp(name, ids, rows.requires_grad_(), counts))
        return rows

    def rows(self, table: str, ids: Tensor) -> Tensor:
        """The rows ``[ids, d]`` of ids that this worker holds."""
        weight = self._tables[table].weight.detach()
        return weight[(ids // self.group.size).to(weight.device)].to(ids.device)

    def holds(self, table: str, ids: Tensor) -> bool:
        """Whether this worker holds the rows of all ids."""
        held = self._tables[table].held
        return bool(((ids >= held.start) & (ids < held.stop) & ((ids - held.start) % held.step == 0)).all())

    def collect(self, share: float) -> None:
        """Set ``gradients`` from the step's look-ups, times this worker's share; a collective, unless ``served``."""
        if self.served is not None:
            self.gradients |= self._sums_of_step(1.0)
            return
        messages, numbers = self.dealt(self._sums_of_step(share))
        if self.group.size > 1:
            with inner_phase("exchange"):
                self.count([*messages, *numbers])
                messages = self.group.all_to_all_rows(messages)
                numbers = self.group.all_to_all_rows(numbers, [*map(self._numbers_after, messages)])
        self.gradients = self.received(messages, numbers)

    def step(self) -> None:
        """Take the tables' steps on ``gradients``; with ``served``, the servers take them."""
        if self.served is None:
            self.take_step(self.gradients, self.factor)
            self.gradients = {}

    def take_step(self, sums: Mapping[str, RowSums], factor: float) -> None:
        """Step on gradients of this worker's rows, by table, with the learning rates times ``factor``."""
        for name, one in sums.items():
            weight, optimizer = self._tables[name].weight, self._optimizers[name]
            places, gradients = one.rows.unsqueeze(0).to(weight.device), one.gradients.to(weight.device)
            weight.grad = torch.sparse_coo_tensor(
                places, gradients, weight.shape, is_coalesced=True, check_invariants=False
            )
            for group, rate in zip(optimizer.param_groups, self._rates[name], strict=True):
                group["lr"] = rate * factor
            with torch.sparse.check_sparse_tensor_invariants(enable=False):  # type: ignore[no-untyped-call]
                optimizer.step()
            weight.grad = None
            if name in self._seen:
                self._admit(name, one.counted, one.counts)

    def dealt(self, sums: Mapping[str, RowSums]) -> tuple[list[Tensor], list[Tensor]]:
        """Messages to each worker on ids of its rows, by table, and the numbers of their gradients.

        A message begins with two integers for each table: how many ids it has of it, and whether the table was used.
        """
        heads, ids, values = [], [], []  # by table and worker
        none = torch.empty(0, dtype=torch.int64, device=self._device)
        for name, table in self._tables.items():
            one = sums.get(name) or RowSums(none, table.weight.detach()[:0].to(self._device), none, none)
            order, parts = self._by_holder(one.rows)
            sizes = [*map(len, parts)]
            heads.append([one.rows.new_tensor([size, name in sums]) for size in sizes])
            counts = torch.split(one.counts[order], sizes)
            ids.append([*map(torch.cat, zip(parts, counts, strict=True))] if name in self._seen else parts)
            values.append([part.reshape(-1) for part in torch.split(one.gradients[order], sizes)])
        messages = zip(*heads, *ids, strict=True)
        return [*map(torch.cat, messages)], [*map(torch.cat, zip(*values, strict=True))]

    def received(
        self, messages: Sequence[Tensor], numbers: Sequence[Tensor], *, unused: bool = False
    ) -> dict[str, RowSums]:
        """The sums of what workers sent, in their order, for this worker's rows; ``unused``: of unused tables, too."""
        sums: dict[str, RowSums] = {}
        parts = [self._parts(*pair) for pair in zip(messages, numbers, strict=True)]
        for name, *columns in zip(self._tables, *parts, strict=True):
            used, ids, values = zip(*columns, strict=True)
            if unused or any(used):
                joint = torch.cat(ids, 1)
                places = joint[0] // self.group.size
                rows, gradients = _sums(places, torch.cat(values))
                counted = _sums(places, joint[1]) if name in self._seen else (rows, rows)
                sums[name] = self._admitted(name, RowSums(rows, gradients, *counted))
        return sums

    def check(self, message: Tensor, numbers: Tensor) -> None:
        """Raise ValueError or RuntimeError unless this is a message of ``dealt`` for this worker."""
        for name, (_, ids, _) in zip(self._tables, self._parts(message, numbers), strict=True):
            if not self.holds(name, ids[0]):
                raise ValueError(f"other workers hold some of the ids of {name!r}")

    def count(self, parts: Sequence[Tensor]) -> None:
        """Count the bytes of what this worker sends to each worker."""
        others = [part for number, part in enumerate(parts) if number % self.group.size != self.group.rank]
        self.sent.count += sum(part.nbytes for part in others)

    def state_dict(self) -> dict[str, Any]:
        """The states of the tables' optimizers, and the counts of ids, by table and name; tensors are live."""
        states = {
            _joined(name, key): value
            for name, optimizer in self._optimizers.items()
            for key, value in optimizer.state.get(self._tables[name].weight, {}).items()
        }
        return states | {_joined(name, SEEN): counts for name, counts in self._seen.items()}

    def load_state_dict(self, state: Mapping[str, Any], kinds: Mapping[str, str]) -> None:
        """Restore a state from ``state_dict`` of optimizers of these ``kinds``; raises InvalidInput if they differ."""
        counted = {name for name in self._tables if _joined(name, SEEN) in state}
        if kinds != self.kinds or counted != {*self._seen}:
            raise InvalidInput(
                f"the saved state is of another training: its tables have the optimizers {dict(kinds)}, and this "
                f"training's {self.kinds}; or another admit. Resume with the "
                "tables of the saved run, or start a new run elsewhere."
            )
        for name, optimizer in self._optimizers.items():
            weight, start = self._tables[name].weight, _joined(name, "")
            mine = {key.removeprefix(start): value for key, value in state.items() if key.startswith(start)}
            if name in self._seen:
                self._seen[name].copy_(mine.pop(SEEN))
            optimizer.state[weight] = {
                key: value.to(weight.device) if isinstance(value, Tensor) and value.dim() else value
                for key, value in mine.items()
                if "." not in key
            }

    def _sums_of_step(self, share: float) -> dict[str, RowSums]:
        """The sums over the step's look-ups by ids, of the tables that they used."""
        parts: dict[str, list[RowSums]] = {}
        for one in self.look_ups:
            if (gradients := one.rows.grad) is not None:
                ids, counts = one.ids, torch.zeros_like(one.ids) if one.counts is None else one.counts
                if (padding := self._tables[one.name].padding_idx) is not None:
                    trained = ids != padding
                    ids, gradients, counts = ids[trained], gradients[trained], counts[trained]
                parts.setdefault(one.name, []).append(RowSums(ids, gradients * share, ids, counts))
        self.look_ups = []
        return {name: joined(sums) for name, sums in parts.items()}

    def _admitted(self, name: str, sums: RowSums) -> RowSums:
        """The sums without gradients of the rows that training has not admitted."""
        if name not in self._seen:
            return sums
        places = sums.rows.to(self._seen[name].device)
        trained = (self._seen[name][places] >= self._tables[name].admit).to(sums.rows.device)
        return replace(sums, rows=sums.rows[trained], gradients=sums.gradients[trained])

    @torch.no_grad()
    def _admit(self, name: str, rows: Tensor, counts: Tensor) -> None:
        """Count the look-ups of a step, and begin the rows that it admits."""
        table, seen = self._tables[name], self._seen[name]
        rows, counts = rows.to(seen.device), counts.to(seen.device)
        before = seen[rows]
        after = (before + counts).clamp(max=table.admit)  # a count of many steps must not overflow
        seen[rows] = after.to(seen.dtype)
        begun = rows[(before < table.admit) & (after >= table.admit)]
        if len(begun):
            ids = begun.cpu() * table.held.step + table.held.start
            table.weight[begun] = table.initial(self._seeds[name], ids).to(table.weight)

    def _parts(self, message: Tensor, numbers: Tensor) -> list[tuple[int, Tensor, Tensor]]:
        """Of each table whether it was used, ids beside any counts ``[1 or 2, k]``, and gradients ``[k, d]``."""
        head, tables = message[: 2 * len(self._tables)].view(-1, 2).tolist(), self._tables.items()
        rows = [1 + (name in self._seen) for name in self._tables]
        ids = torch.split(message[2 * len(rows) :], [count * row for (count, _), row in zip(head, rows, strict=True)])
        values = torch.split(numbers, [k * one.embedding_dim for (k, _), (_, one) in zip(head, tables, strict=True)])
        return [
            (used, part.view(row, count), value.view(count, table.embedding_dim))
            for (count, used), row, part, value, (_, table) in zip(head, rows, ids, values, tables, strict=True)
        ]

    def _numbers_after(self, message: Tensor) -> int:
        """How many numbers a worker sends after a message."""
        counts: list[int] = message[: 2 * len(self._tables) : 2].tolist()
        return sum(count * table.embedding_dim for count, table in zip(counts, self._tables.values(), strict=True))

    def _by_holder(self, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The order of ids by the worker that holds them, and the ids of each worker."""
        if self.group.size == 1:
            return torch.arange(len(ids), device=ids.device), [ids]
        holder = ids % self.group.size
        order = holder.argsort(stable=True)
        return order, [*torch.split(ids[order], torch.bincount(holder, minlength=self.group.size).tolist())]


def joined(sums: Sequence[RowSums]) -> RowSums:
    """One sum of several of a table."""
    if len(sums) == 1:
        return sums[0]
    gradients = _sums(torch.cat([one.rows for one in sums]), torch.cat([one.gradients for one in sums]))
    counts = _sums(torch.cat([one.counted for one in sums]), torch.cat([one.counts for one in sums]))
    return RowSums(*gradients, *counts)


def _sums(ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct ids, ascending, and the sums of their values."""
    distinct, places = torch.unique(ids, return_inverse=True)
    return distinct, values.new_zeros(len(distinct), *values.shape[1:]).index_add_(0, places, values)


def _joined(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
