"""The rows of a gang's tables: look-ups in other workers' rows, and steps of the tables' optimizers.

A look-up of ``k`` distinct ids is two exchanges: ids to the workers that hold the rows, and rows back. A step is two
more, for all tables together: ids, and the sums of the gradients of their rows over the worker's look-ups. All workers
call the tables in the same order.

With ``Table(admit=k)``, the worker that holds a row counts how often all workers looked its id up in training. When a
step ends with a count of at least ``k``, the row gets its initial numbers; before, its gradients are dropped.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.cluster.group.world import Group, World
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import Slice
from sparkdl.telemetry.step_timer import inner_phase
from sparkdl.training.layouts import Layout, SentBytes
from sparkdl.training.layouts.table import CHUNK, Table, tables_of
from sparkdl.training.objective.objective import Objective

_SEEN = "seen"


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


class TableRows:
    """The rows of all tables of a module, on the workers of a group.

    Args:
        module: the module, whose tables hold this worker's rows from now on.
        group: the workers.
        seed: of the initial rows.
        device: of the passes, and so of ids.

    Attributes:
        group: the workers.
        gradients: of this worker's rows in the present step: places of rows ``[k]`` and gradients ``[k, d]``, by the
            names of the tables that any worker used.
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
        self.gradients: dict[str, tuple[Tensor, Tensor]] = {}
        self.look_ups: list[LookUp] = []
        self._tables = tables_of(module)
        self._names = {id(table): name for name, table in self._tables.items()}
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        self._seeds: dict[str, int] = {}
        self._seen: dict[str, Tensor] = {}  # how often ids were looked up, [rows], of tables that admit them
        self._counted: dict[str, tuple[Tensor, Tensor]] = {}  # places of rows and their counts in the present step
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
        self._rates = {name: [group["lr"] for group in one.param_groups] for name, one in self._optimizers.items()}
        self.kinds = {name: type(one).__qualname__ for name, one in self._optimizers.items()}

    def look_up(self, table: Table, ids: Tensor, counts: Tensor | None) -> Tensor:
        """The rows of distinct, ascending ids; a pass with gradients keeps them for ``collect``."""
        size, weight = self.group.size, table.weight.detach()
        if size == 1:
            rows = weight[ids.to(weight.device)].to(ids.device)
        else:
            order, parts = self._by_holder(ids)
            with inner_phase("exchange"):
                asked = self.group.all_to_all_rows(parts)
                replies = [weight[(one // size).to(weight.device)].to(ids.device) for one in asked]
                answers = torch.cat(self.group.all_to_all_rows(replies, [*map(len, parts)]))
            rows = torch.empty_like(answers)
            rows[order] = answers
            if torch.is_grad_enabled():
                self._count([*parts, *replies])
        if torch.is_grad_enabled():
            self.look_ups.append(LookUp(self._names[id(table)], ids, rows.requires_grad_(), counts))
        return rows

    def collect(self, share: float) -> None:
        """Set ``gradients`` from the step's look-ups; ``share`` is this worker's share of the step. A collective."""
        used = {one.name for one in self.look_ups if one.rows.grad is not None}
        mine = {name: self._summed(name, share) for name in self._tables}
        self.look_ups, size = [], self.group.size
        heads: list[list[int]] = [[] for _ in range(size)]
        ids: list[list[Tensor]] = [[] for _ in range(size)]
        values: list[list[Tensor]] = [[] for _ in range(size)]
        for name, (rows, gradients, counts) in mine.items():
            order, parts = self._by_holder(rows)
            sizes = [*map(len, parts)]
            pieces, numbers_seen = torch.split(gradients[order], sizes), torch.split(counts[order], sizes)
            for holder, (part, piece) in enumerate(zip(parts, pieces, strict=True)):
                heads[holder] += [len(part), name in used]
                ids[holder] += [part, numbers_seen[holder]] if name in self._seen else [part]
                values[holder].append(piece.reshape(-1))
        messages = [torch.cat([part[0].new_tensor(head), *part]) for head, part in zip(heads, ids, strict=True)]
        numbers = [torch.cat(part) for part in values]
        if size > 1:
            with inner_phase("exchange"):
                self._count([*messages, *numbers])
                messages = self.group.all_to_all_rows(messages)
                numbers = self.group.all_to_all_rows(numbers, [*map(self._numbers_after, messages)])
        self.gradients = {name: self._admitted(name, *part) for name, *part in self._received(messages, numbers)}

    def step(self, factor: float) -> None:
        """Take the tables' steps, with their learning rates times ``factor``."""
        for name, (rows, values) in self.gradients.items():
            weight, optimizer = self._tables[name].weight, self._optimizers[name]
            places, gradients = rows.unsqueeze(0).to(weight.device), values.to(weight.device)
            weight.grad = torch.sparse_coo_tensor(
                places, gradients, weight.shape, is_coalesced=True, check_invariants=False
            )
            for group, rate in zip(optimizer.param_groups, self._rates[name], strict=True):
                group["lr"] = rate * factor
            with torch.sparse.check_sparse_tensor_invariants(enable=False):  # type: ignore[no-untyped-call]
                optimizer.step()
            weight.grad = None
        for name, (rows, counts) in self._counted.items():
            self._admit(name, rows, counts)
        self.gradients, self._counted = {}, {}

    def state_dict(self) -> dict[str, Any]:
        """The states of the tables' optimizers, and the counts of ids, by table and name; tensors are live."""
        states = {
            _joined(name, key): value
            for name, optimizer in self._optimizers.items()
            for key, value in optimizer.state.get(self._tables[name].weight, {}).items()
        }
        return states | {_joined(name, _SEEN): counts for name, counts in self._seen.items()}

    def load_state_dict(self, state: Mapping[str, Any], kinds: Mapping[str, str]) -> None:
        """Restore a state from ``state_dict`` of optimizers of these ``kinds``; raises InvalidInput if they differ."""
        counted = {name for name in self._tables if _joined(name, _SEEN) in state}
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
                self._seen[name].copy_(mine.pop(_SEEN))
            optimizer.state[weight] = {
                key: value.to(weight.device) if isinstance(value, Tensor) and value.dim() else value
                for key, value in mine.items()
                if "." not in key
            }

    def _summed(self, name: str, share: float) -> tuple[Tensor, Tensor, Tensor]:
        """The ids that this worker's batch used, the sums of their rows' gradients, and how often they occur."""
        table = self._tables[name]
        parts = [(one, one.rows.grad) for one in self.look_ups if one.name == name and one.rows.grad is not None]
        if not parts:
            none = torch.empty(0, dtype=torch.int64, device=self._device)
            return none, table.weight.detach()[:0].to(self._device), none
        ids, gradients = torch.cat([one.ids for one, _ in parts]), torch.cat([grad for _, grad in parts]) * share
        counts = torch.cat([torch.zeros_like(one.ids) if one.counts is None else one.counts for one, _ in parts])
        if len(parts) > 1:
            (_, counts), (ids, gradients) = _sums(ids, counts), _sums(ids, gradients)
        if table.padding_idx is not None:
            trained = ids != table.padding_idx
            ids, gradients, counts = ids[trained], gradients[trained], counts[trained]
        return ids, gradients, counts

    def _admitted(self, name: str, rows: Tensor, values: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of the rows that training has admitted."""
        if name not in self._seen:
            return rows, values
        self._counted[name] = rows, counts
        trained = (self._seen[name][rows.to(self._seen[name].device)] >= self._tables[name].admit).to(rows.device)
        return rows[trained], values[trained]

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

    def _received(self, messages: list[Tensor], numbers: list[Tensor]) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
        """The gradients of this worker's rows and how often they were looked up, summed in rank order."""
        heads = [message[: 2 * len(self._tables)].view(-1, 2).tolist() for message in messages]
        first, begin = [2 * len(self._tables)] * len(messages), [0] * len(messages)
        for number, (name, table) in enumerate(self._tables.items()):
            ids, values, counts = [], [], []
            for rank, head in enumerate(heads):
                count = head[number][0]
                end = begin[rank] + count * table.embedding_dim
                parts = 2 if name in self._seen else 1
                sent = messages[rank][first[rank] : first[rank] + parts * count].view(parts, count)
                ids.append(sent[0])
                counts.append(sent[-1])
                values.append(numbers[rank][begin[rank] : end].view(count, table.embedding_dim))
                first[rank], begin[rank] = first[rank] + parts * count, end
            if any(head[number][1] for head in heads):
                places = torch.cat(ids) // self.group.size
                rows, gradients = _sums(places, torch.cat(values))
                yield name, rows, gradients, _sums(places, torch.cat(counts))[1] if name in self._seen else rows

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

    def _count(self, parts: list[Tensor]) -> None:
        others = [part for number, part in enumerate(parts) if number % self.group.size != self.group.rank]
        self.sent.count += sum(part.nbytes for part in others)


def check_new_rows(module: nn.Module) -> None:
    """Raise InvalidInput if a table has rows already, which a layout with slices would replace by new ones."""
    if filled := [name for name, table in tables_of(module).items() if table.filled]:
        raise InvalidInput(
            f"Table {filled[0]!r} has rows, as in a module, a WarmStart or a factory that loads rows, and a layout "
            "with slices begins with new rows; expected layout=Replicated(), or a factory that passes the rows as init."
        )


def drop_weights(module: nn.Module) -> list[tuple[Table, nn.Parameter]]:
    """Remove the weights of tables, so that a layout with slices sees the other parameters alone, and return them.

    Raises:
        InvalidInput: another module has the weight of a table too.
    """
    _check_owners(module)
    weights = [(table, table.weight) for table in tables_of(module).values()]
    for table, _ in weights:
        del table.weight
    return weights


@contextmanager
def dropped_weights(module: nn.Module) -> Iterator[None]:
    """In the block, tables have no weights; raises InvalidInput as ``drop_weights``."""
    weights = drop_weights(module)
    try:
        yield
    finally:
        for table, weight in weights:
            table.weight = weight


def check_tables(objective: Objective, module: nn.Module) -> None:
    """Raise InvalidInput if a gang cannot train the module's tables."""
    tables = tables_of(module)
    for name, table in tables.items():
        state_sizes(table, name)
    _check_owners(module)
    settings = {"precision='fp16'": objective.precision == "fp16", "compile": objective.compile is not None}
    if tables and (refused := [setting for setting, there in settings.items() if there]):
        raise InvalidInput(
            f"the model has a Table, {', '.join(tables)}, and {refused[0]} is set; expected no fp16 and no compile."
        )


def check_no_tables(layout: Layout, module: nn.Module) -> None:
    """Raise InvalidInput if the module has a table, whose rows the layout would not train."""
    if tables := tables_of(module):
        raise InvalidInput(
            f"layout is {type(layout).__name__}, and the model has a Table, {', '.join(tables)}; expected "
            "Replicated() or Sharded(), with which tables lie on all workers."
        )


def state_sizes(table: Table, name: str = "") -> dict[str, tuple[int, ...]]:
    """What a table's optimizer, and the counts of ids, keep for each row: the shapes of a row's state, by name.

    Raises:
        InvalidInput: the optimizer does not step on sparse gradients, or keeps sparse states.
    """
    rows = table.embedding_dim + 2  # no other dimension
    weight = nn.Parameter(torch.zeros(rows, table.embedding_dim, device="cpu"), requires_grad=False)
    row, place = torch.ones(1, table.embedding_dim, device="cpu"), torch.tensor([[1]], device="cpu")
    weight.grad = torch.sparse_coo_tensor(place, row, weight.shape, check_invariants=False)
    try:
        optimizer = table.optimizer([weight])
        optimizer.step()
        state = dict(optimizer.state[weight])
        for group in optimizer.param_groups:
            group["lr"] *= 1.0  # as a schedule does
    except Exception as error:
        raise _refusal(table, name, f"{type(error).__name__}: {error}") from error
    if any(isinstance(value, Tensor) and value.is_sparse for value in state.values()):
        raise _refusal(table, name, "it keeps sparse states, as SGD does with momentum")
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor) and value.dim()}
    sizes = {key: tuple(value.shape[1:]) for key, value in tensors.items() if len(value) == rows}
    return sizes | ({_SEEN: ()} if table.admit else {})


def _check_owners(module: nn.Module) -> None:
    owners = Counter(id(value) for part in module.modules() for value in part.parameters(recurse=False))
    if shared := [name for name, table in tables_of(module).items() if owners[id(table.weight)] > 1]:
        raise InvalidInput(
            f"the weight of Table {shared[0]!r} is another module's too; expected one Table of both uses."
        )


def _refusal(table: Table, name: str, reason: str) -> InvalidInput:
    optimizer: Any = getattr(table.optimizer, "func", table.optimizer)
    return InvalidInput(
        f"the optimizer of Table {name!r}, {getattr(optimizer, '__name__', optimizer)}, cannot train rows: {reason}. "
        "Expected RowAdagrad, or SGD without momentum, Adagrad or SparseAdam of torch.optim."
    )


def _sums(ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct ids, ascending, and the sums of their values."""
    distinct, places = torch.unique(ids, return_inverse=True)
    return distinct, values.new_zeros(len(distinct), *values.shape[1:]).index_add_(0, places, values)


def _joined(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
