"""PowerSGD equals torch's hook on one bucket."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from sparkdl.cluster.group.world import Group, World
from sparkdl.data.shard import Shard
from sparkdl.training.strategies.buckets import make_buckets
from sparkdl.training.strategies.reducers.powersgd import PowerSGD
from tests.training.strategies.reducers.reducing import gradient

SHAPES = ((24, 20), (5,), (3, 4, 2, 2), (30, 31))
RANK, WARMUP, STEPS = 3, 2, 8


@dataclass(frozen=True)
class Both:
    """Sums of the same gradients by torch's hook and by the reducer, from the same first Q."""

    def __call__(self, world: World, shard: Shard | None) -> list[tuple[Tensor, Tensor]]:
        logging.getLogger("torch.distributed.algorithms").setLevel(logging.ERROR)
        (bucket,) = make_buckets([nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in SHAPES], 1 << 20)
        state = PowerSGDState(None, RANK, WARMUP, min_compression_rate=1.5, orthogonalization_epsilon=1e-12)
        reduction = PowerSGD(RANK, warmup=WARMUP, min_compression_rate=1.5).open([bucket], world.group())
        pairs = []
        for step in range(STEPS):
            flat = torch.cat([gradient(one.shape, step, world.rank).view(-1) / world.size for one in bucket.gradients])
            theirs = (flat * world.size).clone()
            bucket.buffer[: len(flat)] = flat
            powerSGD_hook(state, self.bucket(theirs, bucket.gradients)).wait()
            if step == WARMUP:
                self.start_alike(reduction, state)
            reduction.start(bucket).wait()
            pairs.append((bucket.buffer[: len(flat)].clone(), theirs))
        return pairs

    def bucket(self, flat: Tensor, like: tuple[Tensor, ...]) -> Any:
        """A bucket as DistributedDataParallel has it."""
        pieces = flat.split([one.numel() for one in like])
        views = [piece.view_as(one) for piece, one in zip(pieces, like, strict=True)]
        return SimpleNamespace(
            buffer=lambda: flat, gradients=lambda: views, index=lambda: 0, is_last=lambda: True, set_buffer=flat.copy_
        )

    def start_alike(self, reduction: Any, state: PowerSGDState) -> None:
        """Give the reducer the first Q that the hook drew by its own generator."""
        torch.manual_seed(int(np.random.RandomState(0).randint(1_000_000_000)))
        (low_rank,) = reduction._phases.values()
        for factors in low_rank._factors:
            factors.Q.copy_(torch.randn(1, factors.Q.shape[1], len(factors.Q), dtype=torch.float64)[0].t())


def test_sums_equal_those_of_the_hook(pair):
    for ours, theirs in pair.gang(Both())[0]:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_zero_gradients_do_not_stop_later_ones():
    """Of which the first input and output are zero: no product with the first unit vectors would see them."""
    (bucket,) = make_buckets([nn.Parameter(torch.zeros(40, 24, dtype=torch.float64))], 1 << 20)
    alone = SimpleNamespace(size=2, sum_=lambda tensor, wait: SimpleNamespace(wait=lambda: None))
    reduction = PowerSGD(1, warmup=0).open([bucket], alone)
    reduction.start(bucket).wait()
    assert not bucket.gradients[0].any()
    expected = torch.zeros(40, 24, dtype=torch.float64)
    expected[1:, 1:] = torch.outer(torch.arange(1.0, 40), torch.arange(1.0, 24))
    bucket.gradients[0].copy_(expected)
    reduction.start(bucket).wait()
    torch.testing.assert_close(bucket.gradients[0], expected)


def test_small_gradients_are_uncompressed():
    shapes = {(40, 24): True, (8, 8): False, (64,): False, (3, 4, 2, 2): False}
    for shape, compressed in shapes.items():
        buckets = make_buckets([nn.Parameter(torch.zeros(shape))], 1 << 20)
        reduction = PowerSGD(rank=4, warmup=0).open(buckets, Group(0, 2))
        elements = buckets[0].buffer.numel()
        assert reduction.bytes_per_step == 4 * ((40 + 24) * 4 + 1 if compressed else elements)
