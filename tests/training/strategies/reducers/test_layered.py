"""The layered sum equals the flat one up to rounding, is bit-identical on all workers, and sends less between hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl.cluster.group.world import Axis, Group, World
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.buckets import make_buckets
from sparkdl.training.strategies.reducers import layered
from sparkdl.training.strategies.reducers.exact import Exact
from sparkdl.training.strategies.reducers.layered import Layered, LayeredReduction
from tests.contracts import work
from tests.contracts.hosts import OnHosts
from tests.contracts.strategy_contract import SAMPLE, Case, SynchronousContract, assert_equal, numbers

IN_ORDER, INTERLEAVED = ("a", "a", "b", "b"), ("a", "b", "a", "b")
UNEVEN = ("a", "b", "a", "a")
SIZE = 1 << 20


class TestLayered(SynchronousContract):
    """Two subgroups of two consecutive ranks."""

    strategy = AllReduce(reduce=Layered(inner=2), bucket_bytes=64)  # several buckets
    cases = SAMPLE

    @pytest.fixture
    def cluster(self, four):
        return four


@pytest.mark.parametrize("hosts", [INTERLEAVED, UNEVEN])
def test_subgroups_are_the_workers_of_each_host(four, hosts):
    case = Case(precision="fp32", batch_size=12)
    flat = four.gang(work.Fit(case.training(AllReduce())), numbers(), case.columns())
    fit = work.Fit(case.training(AllReduce(reduce=Layered(), bucket_bytes=64)))
    workers = four.gang(OnHosts(fit, hosts), numbers(), case.columns())
    for worker in workers:
        assert_equal(worker["parameters"], workers[0]["parameters"])
    assert_equal(workers[0]["parameters"], flat[0]["parameters"], 1e-6)
    assert workers[0]["report"]["bytes_per_step"] > workers[3]["report"]["bytes_per_step"]


# ---- many buckets at once --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sums:
    """Sum several buckets for some steps: the largest difference from exact sums, and the bytes of the last sums."""

    reducer: Layered
    steps: int = 3

    def __call__(self, world: World, shard: Any) -> list[Any]:
        buckets = make_buckets([nn.Parameter(torch.zeros(size)) for size in (1, 300, 7, 20)], 1)
        reduction = self.reducer.open(buckets, world.group())
        exact, errors, sums = Exact().open(buckets, world.group()), [], []
        for step in range(self.steps):
            random = torch.Generator().manual_seed(10 * step + world.rank)
            values = [torch.randn(bucket.buffer.shape, generator=random) for bucket in buckets]
            for one in (exact, reduction):
                for bucket, value in zip(buckets, values, strict=True):
                    bucket.buffer.copy_(value)
                for pending in [one.start(bucket) for bucket in buckets]:
                    pending.wait()
                sums.append(torch.cat([bucket.buffer for bucket in buckets]))
            errors.append((sums[-1] - sums[-2]).abs().max().item())
        return [max(errors), sums[-1].numpy().tobytes()]


@pytest.mark.parametrize("inner", [1, 2, 3, 9, None])
def test_buckets_under_way_together_get_their_sums(four, inner):
    errors, sums = zip(*four.gang(Sums(Layered(inner))), strict=True)
    assert max(errors) < 1e-5
    assert len(set(sums)) == 1


def sum_before_leaders_wait(world: World, shard: Any) -> float:
    """The others have the sum, and say so, before the leaders wait for it."""
    (bucket,) = make_buckets([nn.Parameter(torch.zeros(8))], 64)
    pending = Layered(inner=2).open([bucket], world.group()).start(bucket)
    if world.rank % 2:
        pending.wait()
    world.group().gather("received")
    pending.wait()
    return bucket.used.item()


def test_leaders_exchange_in_the_background(four):
    assert four.gang(sum_before_leaders_wait) == [4.0] * 4


def opened(monkeypatch, hosts: Sequence[str], inner: int | None = None) -> list[LayeredReduction]:
    """The reducer on each worker, without processes, for one bucket of ``SIZE`` bytes."""
    monkeypatch.setattr(layered, "split", lambda group, rule: Group())
    axis = Axis((tuple(range(len(hosts))),), tuple(hosts), 1.0)
    (bucket,) = make_buckets([nn.Parameter(torch.zeros(SIZE // 4 - 1))], SIZE)
    groups = (Group(rank, len(hosts), None, axis.groups[0], axis) for rank in range(len(hosts)))
    return [Layered(inner).open([bucket], group) for group in groups]


def test_bytes_of_leaders_and_others(monkeypatch):
    leader, *others = opened(monkeypatch, UNEVEN)
    # To the other leader, to two workers of the host, and in the ring by which gloo sums inside the host.
    assert leader.bytes_per_step == SIZE + 2 * SIZE + 2 * SIZE // 3
    assert [one.bytes_per_step for one in others] == [SIZE, SIZE, SIZE]
    assert [one.bytes_per_step for one in opened(monkeypatch, ("a",))] == [0]
