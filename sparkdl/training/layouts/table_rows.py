"""The rows of a gang's tables: look-ups in other workers' rows, and steps of the tables' optimizers.

A look-up of ``k`` distinct ids is two exchanges: ids to the workers that hold the rows, and rows back. A step is two
more, for all tables together: ids, and the sums of the gradients of their rows over the worker's look-ups. All workers
call the tables in the same order.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.cluster.group.world import Group
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import Slice
from sparkdl.telemetry.step_timer import inner_phase
from sparkdl.training.layouts import Layout, SentBytes
from sparkdl.training.layouts.table import Table, tables_of
from sparkdl.training.objective.objective import Objective


@dataclass(frozen=True)
class LookUp:
    """Rows that a pass uses, and whose gradients the backward pass makes.

    Attributes:
        name: of the table.
        ids: distinct ones, ascending.
        rows: ``[ids, d]``, a leaf.
    """

    name: str
    ids: Tensor
    rows: Tensor


class TableRows:
    """The rows of all tables of a module, on the workers of a group.

    Args:
        module: the module, whose tables hold this worker's rows from now on.
        group: the workers.
        seed: of the initial rows.

    Attributes:
        group: the workers.
        gradients: of this worker's rows in the present step: places of rows ``[k]`` and gradients ``[k, d]``, by the
            names of the tables that any worker used.
        look_ups: of the present step.
        sent: bytes that this worker has sent in the present step.
        slices: this worker's slices of the weights and of their optimizers' states, by name.
        kinds: classes of the tables' optimizers, by the names of the tables.
    """

    def __init__(self, module: nn.Module, group: Group, seed: int) -> None:
        self.group, self.sent = group, SentBytes()
        self.gradients: dict[str, tuple[Tensor, Tensor]] = {}
        self.look_ups: list[LookUp] = []
        self._tables = tables_of(module)
        self._names = {id(table): name for name, table in self._tables.items()}
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        self.slices: dict[str | int, Slice] = {}
        for name, table in self._tables.items():
            table.hold(group.rank, group.size, self)
            if not table.filled and not bool(table.weight.isnan().all()):
                raise InvalidInput(
                    f"the factory writes rows of Table {name!r}; expected the rows in the argument init."
                )
            if not table.filled:
                table.fill(seed + zlib.crc32(name.encode()))
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

    def look_up(self, table: Table, ids: Tensor) -> Tensor:
        """The rows of distinct, ascending ids; a pass with gradients keeps them for ``collect``."""
        size, weight = self.group.size, table.weight.detach()
        if size == 1:
            rows = weight[ids]
        else:
            order, parts = self._by_holder(ids)
            with inner_phase("exchange"):
                asked = self.group.all_to_all_rows(parts)
                replies = [weight[(one // size).to(weight.device)] for one in asked]
                answers = torch.cat(self.group.all_to_all_rows(replies, [*map(len, parts)]))
            rows = torch.empty_like(answers)
            rows[order] = answers
            if torch.is_grad_enabled():
                self._count([*parts, *replies])
        if torch.is_grad_enabled():
            self.look_ups.append(LookUp(self._names[id(table)], ids, rows.requires_grad_()))
        return rows

    def collect(self, share: float) -> None:
        """Set ``gradients`` from the step's look-ups; ``share`` is this worker's share of the step. A collective."""
        used = {one.name for one in self.look_ups if one.rows.grad is not None}
        mine = {name: self._summed(name, share) for name in self._tables}
        self.look_ups, size = [], self.group.size
        heads: list[list[int]] = [[] for _ in range(size)]
        ids: list[list[Tensor]] = [[] for _ in range(size)]
        values: list[list[Tensor]] = [[] for _ in range(size)]
        for name, (rows, gradients) in mine.items():
            order, parts = self._by_holder(rows)
            pieces = torch.split(gradients[order], [*map(len, parts)])
            for holder, (part, piece) in enumerate(zip(parts, pieces, strict=True)):
                heads[holder] += [len(part), name in used]
                ids[holder].append(part)
                values[holder].append(piece.reshape(-1))
        messages = [torch.cat([part[0].new_tensor(head), *part]) for head, part in zip(heads, ids, strict=True)]
        numbers = [torch.cat(part) for part in values]
        if size > 1:
            with inner_phase("exchange"):
                self._count([*messages, *numbers])
                messages = self.group.all_to_all_rows(messages)
                numbers = self.group.all_to_all_rows(numbers, [*map(self._numbers_after, messages)])
        self.gradients = dict(self._received(messages, numbers))

    def step(self, factor: float) -> None:
        """Take the tables' steps, with their learning rates times ``factor``."""
        for name, (rows, values) in self.gradients.items():
            weight, optimizer = self._tables[name].weight, self._optimizers[name]
            weight.grad = torch.sparse_coo_tensor(
                rows.unsqueeze(0), values, weight.shape, is_coalesced=True, check_invariants=False
            )
            for group, rate in zip(optimizer.param_groups, self._rates[name], strict=True):
                group["lr"] = rate * factor
            with torch.sparse.check_sparse_tensor_invariants(enable=False):  # type: ignore[no-untyped-call]
                optimizer.step()
            weight.grad = None
        self.gradients = {}

    def state_dict(self) -> dict[str, Any]:
        """The states of the tables' optimizers, by table and name; tensors are live."""
        return {
            _joined(name, key): value
            for name, optimizer in self._optimizers.items()
            for key, value in optimizer.state.get(self._tables[name].weight, {}).items()
        }

    def load_state_dict(self, state: Mapping[str, Any], kinds: Mapping[str, str]) -> None:
        """Restore a state from ``state_dict`` of optimizers of these ``kinds``; raises InvalidInput if they differ."""
        if kinds != self.kinds:
            raise InvalidInput(
                f"the saved state is of another training: its tables have the optimizers {dict(kinds)}, and this "
                f"training's {self.kinds}. Resume with the tables of the saved run, or start a new run elsewhere."
            )
        for name, optimizer in self._optimizers.items():
            weight, start = self._tables[name].weight, _joined(name, "")
            mine = {key.removeprefix(start): value for key, value in state.items() if key.startswith(start)}
            optimizer.state[weight] = {
                key: value.to(weight.device) if isinstance(value, Tensor) and value.dim() else value
                for key, value in mine.items()
                if "." not in key
            }

    def _summed(self, name: str, share: float) -> tuple[Tensor, Tensor]:
        """The ids that this worker's batch used, and the sums of their rows' gradients."""
        table = self._tables[name]
        pairs = [(one.ids, one.rows.grad) for one in self.look_ups if one.name == name]
        parts = [(ids, gradient) for ids, gradient in pairs if gradient is not None]
        if not parts:
            device = table.weight.device
            return torch.empty(0, dtype=torch.int64, device=device), table.weight.detach()[:0]
        ids, gradients = torch.cat([ids for ids, _ in parts]), torch.cat([one for _, one in parts]) * share
        if len(parts) > 1:
            ids, gradients = _sums(ids, gradients)
        if table.padding_idx is not None:
            trained = ids != table.padding_idx
            ids, gradients = ids[trained], gradients[trained]
        return ids, gradients

    def _received(self, messages: list[Tensor], numbers: list[Tensor]) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
        """The gradients of this worker's rows, summed over the workers in rank order."""
        heads = [message[: 2 * len(self._tables)].view(-1, 2).tolist() for message in messages]
        first, begin = [2 * len(self._tables)] * len(messages), [0] * len(messages)
        for number, (name, table) in enumerate(self._tables.items()):
            ids, values = [], []
            for rank, head in enumerate(heads):
                count = head[number][0]
                end = begin[rank] + count * table.embedding_dim
                ids.append(messages[rank][first[rank] : first[rank] + count])
                values.append(numbers[rank][begin[rank] : end].view(count, table.embedding_dim))
                first[rank], begin[rank] = first[rank] + count, end
            if any(head[number][1] for head in heads):
                yield name, _sums(torch.cat(ids) // self.group.size, torch.cat(values))

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


def check_tables(objective: Objective, module: nn.Module) -> None:
    """Raise InvalidInput if a gang cannot train the module's tables."""
    tables = tables_of(module)
    owners = Counter(id(value) for part in module.modules() for value in part.parameters(recurse=False))
    for name, table in tables.items():
        state_sizes(table, name)
        if owners[id(table.weight)] > 1:
            raise InvalidInput(
                f"the weight of Table {name!r} is another module's too; expected one Table of both uses."
            )
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
            "layout=Replicated(), with which tables lie on all workers."
        )


def state_sizes(table: Table, name: str = "") -> dict[str, tuple[int, ...]]:
    """What a table's optimizer keeps for each row: the shapes of a row's state, by name.

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
    return {key: tuple(value.shape[1:]) for key, value in tensors.items() if len(value) == rows}


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
