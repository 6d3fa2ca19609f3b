"""Gradients in half precision: half the bytes, and no state.

Every worker rounds its gradients, and the backend adds them in half precision, so each addition rounds again. bfloat16
has the range of float32 and 8 significant bits. float16 has 11; it turns sums above 65504 into infinity, and gradients
below 6e-8 into 0. (P. Micikevicius et al., Mixed precision training, 2018, arXiv:1710.03740.)

torch's ``bf16_compress_hook`` refuses gloo, and both its hooks divide by the number of workers instead of adding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from sparkdl.cluster.group.world import Group
from sparkdl.io.fields import CheckedFields
from sparkdl.training.cost.traffic import Hosts, Traffic, all_reduce, at_once
from sparkdl.training.strategies.buckets import Bucket
from sparkdl.training.strategies.reducers import PendingReduce
from sparkdl.training.strategies.reducers.exact import ExactReduction
from sparkdl.training.strategies.reducers.pending import FinishedReduce, OneExchange
from sparkdl.training.strategies.reducers.residuals import check_real

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Cast(CheckedFields):
    """Gradients travel and are added in half precision.

    Attributes:
        dtype: ``"bf16"`` or ``"fp16"``.
    """

    dtype: Literal["bf16", "fp16"] = "bf16"

    def open(self, buckets: Sequence[Bucket], group: Group) -> CastReduction:
        """Open the reducer."""
        check_real(self, buckets)
        return CastReduction(self, buckets, group)

    def traffic(self, bucket: Bucket, hosts: Hosts) -> Sequence[Traffic]:
        """Ring all-reduces of half-precision gradients and of the uncompressed counts."""
        values = bucket.buffer.numel() - len(bucket.used)
        sizes = (DTYPES[self.dtype].itemsize * values, bucket.used.nbytes)
        return [at_once(all_reduce(size, hosts) for size in sizes)]


class CastReduction(ExactReduction):
    """The backend's all-reduce of rounded gradients; it has no state."""

    def __init__(self, reducer: Cast, buckets: Sequence[Bucket], group: Group) -> None:
        super().__init__(reducer, buckets, group)
        dtype = DTYPES[reducer.dtype]
        gradients = {bucket.index: bucket.buffer[: -len(bucket.used)] for bucket in buckets}
        self._casts = {index: (full, torch.empty_like(full, dtype=dtype)) for index, full in gradients.items()}

    def start(self, bucket: Bucket) -> PendingReduce:
        """Round the gradients and start their all-reduce; half precision could not count many workers."""
        if self._group.size == 1:
            return FinishedReduce()
        full, half = self._casts[bucket.index]
        half.copy_(full)
        exchanges = [self._group.sum_(tensor, wait=False) for tensor in (half, bucket.used)]
        return OneExchange(exchanges, partial(full.copy_, half))
