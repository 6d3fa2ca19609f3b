"""Strategies that send buckets: what they send follows from the reducer, and is written here once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import nn

from sparkdl.io.fields import CheckedFields
from sparkdl.training.cost.cost_model import Exchange, during_backward
from sparkdl.training.cost.traffic import Hosts, Traffic
from sparkdl.training.strategies import Strategy
from sparkdl.training.strategies.buckets import Bucket, make_buckets
from sparkdl.training.strategies.reducers import Reducer, traffic_of
from sparkdl.training.strategies.reducers.exact import Exact

BUCKET_BYTES = 25 << 20


class BucketStrategy(CheckedFields, Strategy):
    """Sums buckets in each step, the first exchange of each during the backward pass.

    Attributes:
        reduce: how a bucket is summed; None for ``Exact()``.
        bucket_bytes: bytes of a bucket.
    """

    reduce: Reducer | None = None
    bucket_bytes: int

    def exchanges(self, parameters: Sequence[nn.Parameter], hosts: Hosts) -> Sequence[Exchange]:
        """The exchanges of each bucket."""
        buckets = make_buckets(parameters, self.bucket_bytes)
        return during_backward(buckets, [self.traffic(bucket, hosts) for bucket in buckets])

    def traffic(self, bucket: Bucket, hosts: Hosts) -> Sequence[Traffic]:
        """The traffic of one exchange of a bucket; by default of a sum."""
        return traffic_of(self.reduce or Exact(), bucket, hosts)


class BlockStrategy(BucketStrategy):
    """Sends buckets at the end of each block of local steps: by default it sums them.

    Attributes:
        every: steps of a block.
    """

    every: int

    replicated: ClassVar[bool] = False

    def exchanges(self, parameters: Sequence[nn.Parameter], hosts: Hosts) -> Sequence[Exchange]:
        """The exchanges of a mean step, if blocks have ``every`` steps; the model's buffers excluded."""
        buckets = make_buckets(parameters, self.bucket_bytes)
        return [Exchange(one * (1 / self.every)) for bucket in buckets for one in self.traffic(bucket, hosts)]
