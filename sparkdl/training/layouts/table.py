"""Embedding tables that may be larger than a worker's memory: their rows lie on all workers of a gang.

Worker ``r`` of ``n`` holds the rows ``r, r + n, r + 2 n, ...`` of a table ``W [V, d]``. Ids of ``StringIndexer`` fall
by frequency, so that every worker has as many frequent ones. A worker asks for each id of a batch once. After the
backward pass, the worker that holds row ``v`` takes one step of the table's optimizer on

    g_v = sum_i p_i [grad L_i]_v        p_i is worker i's share of the step's rows,

so that a synchronous step is that of one process with the whole table. Rows begin with numbers that depend on seed, row
and column alone: any number of workers starts alike, and none of them makes the whole table. In one process a table is
whole.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparkdl.errors import InvalidInput
from sparkdl.io.fields import Count, Natural, Positive, checked
from sparkdl.training.layouts.row_adagrad import RowAdagrad
from sparkdl.training.objective.module_factory import has_values

SEEN = "seen"
"""The name of the counts of ids among what is kept for each row."""

CHUNK = 1 << 16  # rows that are made at a time
_MODES = (None, "sum", "mean")
_HELD: ContextVar[tuple[int, int] | None] = ContextVar("held rows", default=None)


class RowSource(Protocol):
    """Where a table's rows come from in a gang."""

    def look_up(self, table: Table, ids: Tensor, counts: Tensor | None) -> Tensor:
        """The rows of distinct, ascending ids, ``[ids, d]``; a collective, unless a strategy serves the rows.

        ``counts`` says how often each id occurs, for tables with ``admit``.
        """


class Table(nn.Module):
    """An embedding table, as ``nn.Embedding``, or with a ``mode`` as ``nn.EmbeddingBag``.

    A gang trains its rows with an optimizer of their own, whose learning rate the schedule of the model's optimizer
    scales. The rows are no parameters that the model's optimizer trains, and callbacks such as ``EMA`` leave them out.

    Args:
        num_embeddings: rows ``V``; ids are integers from 0 to ``V - 1``.
        embedding_dim: numbers ``d`` of a row.
        padding_idx: an id whose row starts with zeros and is not trained; with a ``mode``, it counts nothing.
        mode: None looks up a row for each id; ``"sum"`` or ``"mean"`` joins the rows of each bag of ids.
        optimizer: a class or a factory for sparse gradients: ``RowAdagrad``, or ``SGD`` without momentum, ``Adagrad``
            or ``SparseAdam`` of torch. It is called with a list of one weight.
        init: half the width of the uniform distribution of the initial numbers, or a function of ids ``[k]`` that
            returns their rows ``[k, d]``, for example of a pretrained file.
        admit: how many times training has to see an id before its row begins: until the end of that step, the row is
            zeros and not trained, and so it stays in scoring for ids that training saw less often. 0 admits all ids.
        host: whether the rows stay in the host's memory with ``device="cuda"``, and only rows of a batch travel.

    Attributes:
        weight: the rows that this worker holds; all rows in one process.
        held: their ids.

    Raises:
        InvalidInput: an argument has another type or range.
    """

    weight: nn.Parameter

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        mode: str | None = None,
        optimizer: Callable[[list[Tensor]], torch.optim.Optimizer] = RowAdagrad,
        init: float | Callable[[Tensor], Tensor] = 0.01,
        admit: int = 0,
        host: bool = False,
    ) -> None:
        super().__init__()
        self.num_embeddings: int = checked(num_embeddings, Count, "Table.num_embeddings")
        self.embedding_dim: int = checked(embedding_dim, Count, "Table.embedding_dim")
        self.padding_idx: int | None = checked(padding_idx, Natural | None, "Table.padding_idx")
        if padding_idx is not None and padding_idx >= num_embeddings:
            raise InvalidInput(f"Table.padding_idx is {padding_idx}; expected an id below {num_embeddings}.")
        if mode not in _MODES:
            raise InvalidInput(f"Table.mode is {mode!r}; expected None, 'sum' or 'mean'.")
        self.mode, self.optimizer = mode, optimizer
        self.init = init if callable(init) else checked(init, Positive, "Table.init")
        self.admit: int = checked(admit, Natural, "Table.admit")
        self.host: bool = checked(host, bool, "Table.host")
        self.filled = self.mapped = False  # whether the rows have values, and whether they are a file's
        self._source: RowSource | None = None
        rank, size = _HELD.get() or (0, 1)
        self.held = range(rank, num_embeddings, size)
        self.open(torch.get_default_dtype(), None if has_values() else "meta")
        if has_values():
            self.reset_parameters()

    def forward(self, ids: Tensor, offsets: Tensor | None = None) -> Tensor:
        """The rows of ids.

        Args:
            ids: integers of any shape ``[...]``; with a ``mode``, bags of equal size ``[bags, ids]``, or all ids of all
                bags ``[total]``.
            offsets: the first place of each bag ``[bags]``, for ids ``[total]``.

        Returns:
            ``[..., d]``, or with a ``mode`` ``[bags, d]``.

        Raises:
            InvalidInput: an id is no row of the table; or ``offsets`` do not fit ``mode`` and ids.
        """
        if (offsets is not None) != (self.mode is not None and ids.dim() == 1):
            raise InvalidInput(
                f"Table has mode={self.mode!r}, and forward() gets ids {list(ids.shape)} "
                f"{'without' if offsets is None else 'with'} offsets; expected offsets with a mode and ids [total]."
            )
        if self._source is None:
            if len(self.held) != self.num_embeddings and _HELD.get() is None:
                raise InvalidInput(
                    "a Table of a gang's worker, which has some of the rows, was copied, or no module has it; expected "
                    "that forward() calls a table of the model's modules."
                )
            try:
                return self._embedded(ids, self.weight, offsets, self.padding_idx)
            except (IndexError, RuntimeError):
                self._check(ids, torch.unique(ids))
                raise
        if ids.dtype not in (torch.int32, torch.int64):
            raise InvalidInput(f"a Table got ids of {ids.dtype}; expected torch.int64, as ids.long() has.")
        distinct, places = torch.unique(ids.long(), return_inverse=True)
        self._check(ids, distinct)
        counts = torch.bincount(places.flatten(), minlength=len(distinct)) if self.admit else None
        rows, padding = self._source.look_up(self, distinct, counts), None
        if self.padding_idx is not None and len(places_of_padding := (distinct == self.padding_idx).nonzero()):
            padding = int(places_of_padding)
        if not len(distinct):
            rows = rows.new_zeros(1, self.embedding_dim)  # a bag of no ids
        return self._embedded(places, rows, offsets, padding)

    def open(self, dtype: torch.dtype, device: torch.device | str | None) -> None:
        """Make a weight for the rows that this worker holds; they are NaN until they have values."""
        place = "cpu" if self.host and device != "meta" else device
        rows = torch.full((len(self.held), self.embedding_dim), math.nan, dtype=dtype, device=place)
        self.weight = nn.Parameter(rows, requires_grad=False)

    def reset_parameters(self) -> None:
        """Begin with new numbers, of a seed that torch draws; the layout of a gang does so with the run's seed."""
        if _HELD.get() is None:
            self.fill(int(torch.randint(1 << 62, ())))

    def fill(self, seed: int) -> None:
        """Begin with the numbers of a seed, or with zeros if ids have to be admitted."""
        if self.admit:
            self.weight.zero_()
            self.filled = True
        else:
            self.read(partial(self.initial, seed))

    def initial(self, seed: int, ids: Tensor) -> Tensor:
        """The initial rows ``[k, d]`` of ids ``[k]`` on the CPU."""
        if not callable(self.init):
            return hashed_rows(seed, ids, self.embedding_dim, self.init)
        if (rows := self.init(ids)).shape != (len(ids), self.embedding_dim):
            raise InvalidInput(
                f"Table.init returned {list(rows.shape)} for {len(ids)} ids; expected [{len(ids)}, "
                f"{self.embedding_dim}]."
            )
        return rows

    @torch.no_grad()
    def read(self, rows: Callable[[Tensor], Tensor]) -> None:
        """Set the rows that this worker holds to those that a function of their ids returns."""
        for first in range(0, len(self.held), CHUNK):
            ids = torch.tensor(self.held[first : first + CHUNK], dtype=torch.int64, device="cpu")
            self.weight[first : first + CHUNK] = rows(ids)
        if self.padding_idx is not None and self.padding_idx in self.held:
            self.weight[self.held.index(self.padding_idx)] = 0.0
        self.filled = True

    def hold(self, rank: int, size: int, source: RowSource) -> None:
        """Keep the rows of one of ``size`` workers, and look all others up in ``source``."""
        held = range(rank, self.num_embeddings, size)
        if held != self.held:  # a whole table
            self.weight.data = self.weight.data[held.start :: held.step].clone()
        self.weight.requires_grad_(False)
        self.held, self._source = held, source

    def keep(self, rows: Tensor, *, mapped: bool) -> None:
        """Keep these rows, all of the table; ``mapped`` ones stay on the host, and need not be in a ``state_dict``."""
        self.held, self.mapped, self.host, self.filled = range(self.num_embeddings), mapped, mapped or self.host, True
        self.weight = nn.Parameter(rows, requires_grad=False)

    def extra_repr(self) -> str:
        """Rows, numbers of a row, and mode."""
        mode = "" if self.mode is None else f", mode={self.mode!r}"
        return f"{self.num_embeddings}, {self.embedding_dim}{mode}"

    def __getstate__(self) -> dict[str, Any]:
        # A copy is no part of a gang.
        return {**self.__dict__, "_source": None}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Table:
        moved = fn(self.weight.detach()[:0])
        if not self.host or moved.is_meta or self.weight.is_meta:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
            return self
        self.weight.data = self.weight.data.to(moved.dtype)  # and not to a GPU
        return self

    def _embedded(self, ids: Tensor, rows: Tensor, offsets: Tensor | None, padding: int | None) -> Tensor:
        if rows.device != ids.device:  # rows on the host
            offsets = None if offsets is None else offsets.to(rows.device)
            return self._embedded(ids.to(rows.device), rows, offsets, padding).to(ids.device)
        if self.mode is None:
            return F.embedding(ids, rows, padding)
        return F.embedding_bag(ids, rows, offsets, mode=self.mode, padding_idx=padding)

    def _check(self, ids: Tensor, distinct: Tensor) -> None:
        if len(distinct) and not (int(distinct[0]) >= 0 and int(distinct[-1]) < self.num_embeddings):
            wrong = int(distinct[0]) if distinct[0] < 0 else int(distinct[-1])
            place = (ids == wrong).nonzero()[0].tolist()
            raise InvalidInput(
                f"a Table has {self.num_embeddings} rows, and the ids {list(ids.shape)} have {wrong} at {place}; "
                f"expected ids from 0 to {self.num_embeddings - 1}."
            )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        weight = state_dict.get(f"{prefix}weight")
        if isinstance(weight, Tensor) and len(weight) == self.num_embeddings != len(self.held):
            state_dict = {**state_dict, f"{prefix}weight": weight[self.held.start :: self.held.step]}
        if weight is None and self.mapped:
            state_dict = {**state_dict, f"{prefix}weight": self.weight}
        super()._load_from_state_dict(state_dict, prefix, *others)
        self.filled = self.filled or weight is not None


@contextmanager
def held_rows(rank: int, size: int) -> Iterator[None]:
    """In the block, a new table has the rows of one of ``size`` workers, without values."""
    token = _HELD.set((rank, size))
    try:
        yield
    finally:
        _HELD.reset(token)


def without_rows() -> AbstractContextManager[None]:
    """In the block, a new table has no rows."""
    return held_rows(sys.maxsize, 1)


def tables_of(module: nn.Module) -> dict[str, Table]:
    """The tables of a module by name; one that several modules share has the first of its names."""
    return {name: part for name, part in module.named_modules() if isinstance(part, Table)}


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
    check_owners(module)
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
    return sizes | ({SEEN: ()} if table.admit else {})


def check_owners(module: nn.Module) -> None:
    """Raise InvalidInput if another module has the weight of a table, too."""
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


def hashed_rows(seed: int, ids: Tensor, columns: int, half_width: float) -> Tensor:
    """Numbers ``[ids, columns]`` of a uniform distribution, each a hash of seed, id and column."""
    step = np.uint64(0x9E3779B97F4A7C15)
    row = _mixed(ids.numpy().astype(np.uint64) * step + np.uint64(seed % (1 << 64)))
    mixed = _mixed(row[:, None] + np.arange(1, columns + 1, dtype=np.uint64) * step)
    unit = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return torch.from_numpy((2 * unit - 1) * half_width)


def _mixed(x: Any) -> Any:
    """The finalizer of G. Steele, D. Lea, C. Flood, Fast splittable pseudorandom number generators, 2014."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
