"""Batches of one shard: a plan orders its rows, chunks of several steps are gathered, and each is cut into steps.

A ``DeviceCache`` is a shard in the memory of a GPU, from which batches are gathered without a copy from the host. A
shard that does not fit stays in the host's memory, and each batch is copied.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparkdl.data.batch import Batch, Input, Rows, gather, move_to, promote_ints
from sparkdl.data.prefetch import prefetch_to
from sparkdl.data.sampler import Plan, generator
from sparkdl.data.shard import Shard, converted, target_of
from sparkdl.data.transforms import Transforms
from sparkdl.errors import InvalidInput

CACHE_MODES = ("auto", "always", "never")
MARGIN = 0.5
"""The share of a GPU's free memory that a shard may take in the mode ``auto``; the rest is for the model."""
_GATHER_BYTES = 4 << 20  # gathered at a time: enough to make the hand-over cheap, little enough to cache
_GPU_GATHER_BYTES = 64 << 20  # the host's caches do not matter, and its two threads compete for each hand-over
_GATHER_STEPS = 64
_SCAN_ROWS = 1 << 20

_Chunk = tuple[int, list[int], Batch]  # step ``first + i`` has the rows ``bounds[i]`` to ``bounds[i + 1]``


@dataclass(frozen=True)
class DeviceCache:
    """A shard's columns on a device.

    Attributes:
        tensors: column name -> tensor ``[stored rows, *shape]``, with 16 and 32 bit integers as int64.
        device: their device.
    """

    tensors: dict[str, Tensor]
    device: torch.device

    @staticmethod
    def of(shard: Shard, device: torch.device, mode: str = "auto") -> DeviceCache | None:
        """Copy the columns of a shard's batches to a device; None if they stay on the host, as ragged columns do.

        Raises and warns as ``fits``.
        """
        tensors = DeviceCache.columns(shard)
        if mode == "always" and len(tensors) < len(set(shard.columns.of_batches())):
            warnings.warn("cacheOnDevice='always' is ignored: a column is ragged.", stacklevel=2)
        size = sum(column.numel() * promote_ints(column[:0]).element_size() for column in tensors.values())
        if not fits(size, device, mode) or len(tensors) < len(set(shard.columns.of_batches())):
            return None
        try:
            return DeviceCache({name: promote_ints(tensor.to(device)) for name, tensor in tensors.items()}, device)
        except torch.OutOfMemoryError:  # other processes have taken the memory
            if mode == "always":
                raise
            return None

    @staticmethod
    def columns(shard: Shard) -> dict[str, Tensor]:
        """The columns of a shard's batches on the host that are not ragged, in the order of batches."""
        columns = {name: shard.tensors[name] for name in shard.columns.of_batches()}
        return {name: column for name, column in columns.items() if isinstance(column, Tensor)}

    def taken(self, positions: Tensor) -> dict[str, Tensor]:
        """The rows at ``positions``, which are on the device."""
        return {name: tensor.index_select(0, positions) for name, tensor in self.tensors.items()}


def fits(size: int, device: torch.device, mode: str) -> bool:
    """Whether ``size`` bytes are to be held on the device: never on the CPU, with ``"auto"`` up to ``MARGIN``.

    Raises InvalidInput if the mode is ``"always"``, and the shard is larger than the free memory.
    """
    if mode == "always" and device.type == "cpu":
        warnings.warn("cacheOnDevice='always' is ignored: device is 'cpu'.", stacklevel=2)
    if mode == "never" or device.type == "cpu":
        return False
    available, _ = torch.cuda.mem_get_info(device)
    if mode == "always" and size > available:
        raise InvalidInput(
            f"cacheOnDevice is 'always', the shard takes {size} bytes, and {device} has {available} bytes free; "
            "expected a smaller shard: raise numWorkers, or set cacheOnDevice='auto'."
        )
    return mode == "always" or size <= MARGIN * available


@dataclass(frozen=True)
class Batcher:
    """Makes the batches of a shard, epoch by epoch.

    Attributes:
        shard: this worker's shard.
        plan: assigns rows to steps; made from the same ``shard_rows`` on every worker.
        device: device of the batches' tensors.
        transforms: changes each batch on the CPU, ahead of time; None uses the shard's own.
        cache: the shard's columns on ``device``, from which batches without transforms are gathered; default: none.

    Raises:
        InvalidInput: the plan's shard sizes differ from the shard's ``shard_rows``.
    """

    shard: Shard
    plan: Plan
    device: torch.device | str = "cpu"
    transforms: Transforms | None = None
    cache: DeviceCache | None = None

    def __post_init__(self) -> None:
        if self.plan.rows != self.shard.shard_rows:
            raise InvalidInput(f"the plan is for shards of {self.plan.rows} rows; expected {self.shard.shard_rows}.")

    def batches(self, epoch: int, *, start: int = 0, totals: Sequence[float] | None = None) -> Iterator[Batch]:
        """This worker's batches of an epoch, one per step.

        Args:
            epoch: the epoch, from 0; selects the permutation.
            start: first step to yield, from 0.
            totals: global weight of each step; None if every row weighs 1.
        """
        device = torch.device(self.device)
        transforms = self.shard.transforms if self.transforms is None else self.transforms
        if transforms:
            batches = self._transformed(transforms, epoch, start, totals, device)
            yield from prefetch_to(device, batches, Batch.tensors)
            return
        chunks = self._chunks(epoch, start, device, self.cache)
        # The consumer waits for a single chunk anyway, and starting a thread costs more than a few rows. A device
        # gathers while it computes.
        alone = self.cache is not None or self._chunk_steps() >= self.plan.steps - start
        for chunk in chunks if alone else prefetch_to(device, chunks, lambda chunk: chunk[2].tensors()):
            yield from self._cut(chunk, totals)

    def step_weights(self, epoch: int) -> Tensor:
        """This shard's weight in every step of an epoch, float64 ``[steps]``."""
        ends = [self.plan.offset(self.shard.index, step) for step in range(self.plan.steps + 1)]
        if self.shard.denominators is None:
            return torch.tensor(ends, dtype=torch.float64).diff()
        terms = self.shard.denominators[self._positions(epoch)]
        sums = [float(terms[first:last].sum()) for first, last in itertools.pairwise(ends)]
        return torch.tensor(sums, dtype=torch.float64)

    def _positions(self, epoch: int) -> Tensor:
        positions, order = self.plan.permutation(self.shard.index, epoch), self.shard.order
        if order is not None:
            for first in range(0, self.shard.rows, _SCAN_ROWS):  # in place: a large shard's positions take 100 MB
                piece = positions[first : first + _SCAN_ROWS]
                piece.copy_(order[piece])
        return positions

    def _transformed(
        self, transforms: Transforms, epoch: int, start: int, totals: Sequence[float] | None, device: torch.device
    ) -> Iterator[Batch]:
        chunks = self._chunks(epoch, start, torch.device("cpu"))
        batches = itertools.chain.from_iterable(self._cut(chunk, totals) for chunk in chunks)
        for step, stored in enumerate(batches, start):
            yield transforms(stored, generator(self.plan.seed, epoch, step, self.shard.index)).to(device)

    def _chunks(
        self, epoch: int, start: int, device: torch.device, cache: DeviceCache | None = None
    ) -> Iterator[_Chunk]:
        plan, positions, steps = self.plan, self._positions(epoch), self._chunk_steps()
        on_device = None if cache is None else positions.to(cache.device)
        for first in range(start, plan.steps, steps):
            bounds = [plan.offset(self.shard.index, step) for step in range(first, min(first + steps, plan.steps) + 1)]
            chosen = slice(bounds[0], bounds[-1])
            cached = None if cache is None or on_device is None else cache.taken(on_device[chosen])
            rows = stored_batch(self.shard, positions[chosen], device, cached)
            yield first, [bound - bounds[0] for bound in bounds], rows

    def _chunk_steps(self) -> int:
        step_bytes = row_bytes(self.shard) * self.plan.batch_size * self.shard.rows // max(1, self.plan.total)
        most = _GATHER_BYTES if torch.device(self.device).type == "cpu" else _GPU_GATHER_BYTES
        return max(1, min(_GATHER_STEPS, most // max(1, step_bytes)))

    def _cut(self, chunk: _Chunk, totals: Sequence[float] | None) -> Iterator[Batch]:
        first_step, bounds, rows = chunk
        for step, (first, last) in enumerate(itertools.pairwise(bounds), first_step):
            size = self.plan.size(step)
            yield rows.cut(first, last, size if totals is None else totals[step], size)


def stored_batch(
    shard: Shard,
    chosen: slice | Tensor,
    device: torch.device | None = None,
    cached: Mapping[str, Tensor] | None = None,
) -> Batch:
    """A shard's stored rows at the positions ``chosen`` as a batch on a device (default: the CPU); slices are views.

    ``cached`` are these rows, if they are on the device already.
    """
    tensors: Mapping[str, Input] = cached or {
        name: move_to(_taken(shard.tensors[name], chosen, device), device) for name in shard.columns.of_batches()
    }
    denominators = None if shard.denominators is None else _taken(shard.denominators, chosen)
    weight, rows = shard.columns.weight, len(next(iter(tensors.values())))
    return Batch(
        inputs=tuple([tensors[column.name] for column in shard.columns.inputs]),
        target=target_of(tensors, shard.columns),
        weights=None if weight is None else converted(tensors, weight),
        denominators=denominators,
        rows=rows,
        weight=float(rows) if denominators is None else float(denominators.sum()),
        weight_fraction=1.0,
        total=rows,
    )


def row_bytes(shard: Shard) -> int:
    """Approximate bytes of one row of a shard's batches."""
    tensors = [shard.tensors[name] for name in shard.columns.of_batches()]
    return sum(tensor.nbytes // max(1, len(tensor)) for tensor in tensors)


def _taken(rows: Rows, chosen: slice | Tensor, device: torch.device | None = None) -> Rows:
    return rows[chosen] if isinstance(chosen, slice) else gather(rows, chosen, device)
