"""From partitions to batches.

    Arrow batches -> decode (columnar) -> spool (memory-mapped, in row-id order) -> sampler (a seeded permutation)
                  -> prefetch (a thread) -> Batch

Spark delivers a shard once. Every later epoch reads memory-mapped tensors on the executor's local disk.
"""

from sparkdl.data.batching import Batcher
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.sampler import Plan
from sparkdl.data.shard import Shard

__all__ = ["Batcher", "Columns", "InputColumn", "Plan", "Shard"]
