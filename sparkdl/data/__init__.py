"""From partitions to batches.

    Arrow batches -> decode (columnar) -> spool (memory-mapped, in row-id order) -> sampler (a seeded permutation)
                  -> prefetch (a thread) -> Batch

Spark delivers a shard once. Every later epoch reads memory-mapped tensors on the executor's local disk.
"""

from sparkdl.data.batching import Batcher
from sparkdl.data.columns import Column, Columns
from sparkdl.data.sampler import Plan
from sparkdl.data.shard import Part

__all__ = ["Batcher", "Column", "Columns", "Part", "Plan"]
