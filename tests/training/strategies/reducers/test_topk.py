"""The largest elements and their residuals, by hand."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from sparkdl.cluster.group.world import World
from sparkdl.data.shard import Shard
from sparkdl.training.strategies.buckets import make_buckets
from sparkdl.training.strategies.reducers.topk import TopK


@dataclass(frozen=True)
class Steps:
    """Two steps with the gradients of this worker; the sums after each, and the residual."""

    gradients: tuple[tuple[float, ...], ...]

    def __call__(self, world: World, shard: Shard | None) -> list[list[float]]:
        (bucket,) = make_buckets([nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(2))], 1 << 20)
        reduction = TopK(0.5).open([bucket], world.group())
        seen = []
        for _ in range(2):
            bucket.buffer[:6] = torch.tensor(self.gradients[world.rank])
            bucket.used.fill_(1)
            reduction.start(bucket).wait()
            seen.append(bucket.buffer.tolist())
        return [*seen, reduction.state_dict()["residuals"][0].tolist()]


def test_sums_and_residuals_by_hand(pair):
    """The bucket has the second parameter first: one of its two elements travels, and two of the other's four."""
    first, second = pair.gang(Steps(((1, -3, 5, -6, 3, 1), (4, 1, 0, 1, 3, -4))))
    assert first[:2] == second[:2]
    assert first[0] == [4, -3, 5, -6, 3, -4, 2, 2]
    # The residuals 1 0 | 0 0 3 1 and 0 1 | 0 1 0 0 join the next gradients: 2 -3 | 5 -6 6 2 and 4 2 | 0 2 3 -4.
    assert first[1] == [4, -3, 0, -6, 9, -4, 2, 2]
    assert (first[2], second[2]) == ([2, 0, 5, 0, 0, 2], [0, 2, 0, 2, 0, 0])
