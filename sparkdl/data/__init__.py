"""From partitions to batches.

    Arrow batches -> decode (columnar) -> spool (memory-mapped, in row-id order) -> sampler (a seeded permutation)
                  -> prefetch (a thread) -> Batch

Spark delivers a shard once. Every later epoch reads memory-mapped tensors on the executor's local disk.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl.data.batching import Batcher
    from sparkdl.data.columns import Columns, InputColumn
    from sparkdl.data.sampler import Plan
    from sparkdl.data.shard import Shard

__all__ = ["Batcher", "Columns", "InputColumn", "Plan", "Shard"]

_HOMES = {"Batcher": "batching", "Columns": "columns", "InputColumn": "columns", "Plan": "sampler", "Shard": "shard"}


def __getattr__(name: str) -> Any:  # the first use of a name imports torch; the clock alone needs no such import
    if name not in _HOMES:
        raise AttributeError(f"module 'sparkdl.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"sparkdl.data.{_HOMES[name]}"), name)
