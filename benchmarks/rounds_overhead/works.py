"""The rounds' work; executors import it by name."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch

from sparkdl.cluster.tasks import Tensors
from sparkdl.data.batch import Ragged
from sparkdl.data.shard import Shard


@dataclass(frozen=True)
class Nothing:
    """Counts a shard's rows without reading them."""

    def map(self, state: Any, shard: Shard) -> tuple[Tensors, Any]:
        return {"rows": torch.tensor(shard.rows)}, None

    def reduce(self, left: Tensors, right: Tensors) -> Tensors:
        return {name: tensor + right[name] for name, tensor in left.items()}


@dataclass(frozen=True)
class Read(Nothing):
    """Adds up every value of a shard; the note has the bytes read and the seconds."""

    def map(self, state: Any, shard: Shard) -> tuple[Tensors, Any]:
        start = time.perf_counter()
        read, total = 0, torch.zeros((), dtype=torch.float64)
        for tensor in shard.tensors.values():
            assert not isinstance(tensor, Ragged)
            total += tensor.sum()
            read += tensor.nbytes
        return {"total": total}, (read, time.perf_counter() - start)


def drained(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The other side's mapInArrow: drain the input and count the rows."""
    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_arrays([pa.array([rows], pa.int64())], names=["rows"])


def counted(rows: Iterable[Any]) -> list[int]:
    """Count the rows of an RDD's partition."""
    return [sum(1 for _ in rows)]
