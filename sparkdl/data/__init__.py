"""From partitions to batches.

    Arrow batches -> decode (columnar) -> spool (memory-mapped, in row-id order) -> sampling (a seeded permutation)
                  -> prefetch (a thread) -> Batch

A part is read from Spark once; every epoch after that reads memory-mapped tensors on the executor's own disk.
"""

from sparkdl.data.batching import Batcher
from sparkdl.data.columns import Column, Columns
from sparkdl.data.sampler import Plan
from sparkdl.data.shard import Part

__all__ = ["Batcher", "Column", "Columns", "Part", "Plan"]
