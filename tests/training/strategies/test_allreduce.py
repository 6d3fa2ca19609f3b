"""All-reduce is the optimizer of a single process."""

from __future__ import annotations

import os
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sparkdl.cluster.group.world import Group, World
from sparkdl.cluster.inline import InlineCluster
from sparkdl.data.batch import Batch
from sparkdl.data.clock import Clock
from sparkdl.errors import InvalidInput
from sparkdl.training.layouts.passes import ModuleReplica
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.objective.objective import Objective
from sparkdl.training.strategies.allreduce import AllReduce, AllReduceSync
from sparkdl.training.strategies.buckets import Bucket
from sparkdl.training.strategies.reducers.cast import Cast
from tests.contracts import work
from tests.contracts.strategy_contract import DECAYING, SAMPLE, Case, SynchronousContract, assert_equal, numbers


class TestAllReduce(SynchronousContract):
    @pytest.fixture
    def cluster(self, pair):
        return pair


class TestAllReduceElsewhere(SynchronousContract):
    cases = SAMPLE

    @pytest.fixture(params=[1, pytest.param(4, marks=pytest.mark.slow)])
    def cluster(self, request):
        return InlineCluster() if request.param == 1 else request.getfixturevalue("four")


class Crossing(work.Net):
    """Workers with an odd rank use the two middle layers the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        first, second = (self.one, self.other) if int(os.environ["RANK"]) % 2 else (self.other, self.one)
        return self.head(torch.tanh(second(torch.tanh(first(torch.tanh(self.hidden(x))))))).squeeze(-1)


def trained(cluster, case: Case, strategy: AllReduce) -> list[dict[str, Any]]:
    workers = cluster.gang(work.Fit(case.training(strategy)), numbers(), case.columns())
    for member in workers:
        assert_equal(member["parameters"], workers[0]["parameters"])
    return workers


@pytest.mark.parametrize(
    "case", [Case(batch_size=10), Case(work.Gated, optimizer=DECAYING, batch_size=6), Case(Crossing, batch_size=12)]
)
def test_buckets_change_nothing(four, case):
    """Nor does the order of the backward pass."""
    whole = trained(four, case, AllReduce())
    for size in (1, 64):
        pieces = trained(four, case, AllReduce(bucket_bytes=size))
        assert_equal(pieces[0]["parameters"], whole[0]["parameters"], 1e-14)
        assert pieces[0]["report"]["bytes_per_step"] == whole[0]["report"]["bytes_per_step"]


# ---- one worker -----------------------------------------------------------------------------------------------


def attached(model: Any, **options: Any) -> tuple[ModuleReplica, AllReduceSync, list[int]]:
    """A replica with a reducer that only writes down the order of the buckets."""
    started: list[int] = []

    def start(bucket: Bucket) -> SimpleNamespace:
        started.append(bucket.index)
        return SimpleNamespace(wait=lambda: None)

    objective = Objective(work.Seeded(model), nn.MSELoss(), precision="fp64", **options)
    replica = Replicated().place(objective, World(), work.FEED)
    reducer = SimpleNamespace(open=lambda buckets, group: SimpleNamespace(start=start, bytes_per_step=0))
    return replica, AllReduceSync(AllReduce(reduce=reducer, bucket_bytes=1), replica, Group(0, 2)), started


def batch(**options: Any) -> Batch:
    x = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return Batch((x,), x.sum(1), None, None, 6, 6.0, **{"weight_fraction": 0.25, "total": 24, **options})


def test_buckets_start_in_order_with_weighted_gradients():
    replica, sync, started = attached(work.Net)
    mean = nn.functional.mse_loss(replica.module(*batch().inputs), batch().target)
    expected = torch.autograd.grad(mean, replica.parameters)
    replica.gradients(batch())
    assert started == [0, 1, 2, 3]
    assert all(parameter.grad is None for parameter in replica.parameters)
    for bucket in sync._buckets:
        for index, gradient in zip(bucket.parameters, bucket.gradients, strict=True):
            torch.testing.assert_close(gradient, 0.25 * expected[index])
    sync.update(Clock(), batch())
    replica.gradients(batch(), last=False)
    assert started == [0, 1, 2, 3]  # nothing goes out in an accumulation step
    replica.gradients(batch())
    assert started == [0, 1, 2, 3] * 2
    sync.detach()
    assert replica.sink is None


def test_sparse_gradient_of_no_embedding_raises():
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(10, 3))

        def forward(self, x):
            return nn.functional.embedding(x.abs().long()[:, 0], self.table, sparse=True).sum(1)

    replica, _, _ = attached(Sparse, optimizer=partial(torch.optim.SGD, lr=0.1))
    with pytest.raises(InvalidInput, match="sparse gradient"):
        replica.gradients(batch())


def test_a_reducer_leaves_out_sparse_gradients_and_says_so():
    objective = Objective(work.Seeded(work.LookupNet), nn.MSELoss(), precision="fp64")
    replica = Replicated().place(objective, World(), work.FEED)
    with pytest.warns(RuntimeWarning, match=r"Cast\(.*\) leaves out 2 sparse gradients: workers sum them exactly"):
        sync = AllReduce(Cast("bf16")).attach(replica, Group(0, 2))
    names = [name for name, _ in replica.module.named_parameters()]
    bucketed = {names[index] for bucket in sync._buckets for index in bucket.parameters}
    assert bucketed == set(names) - {"numbers.weight", "bag.weight"}


def test_momentum_of_sparse_gradients_is_dense_in_a_state():
    replicas = [
        Replicated().place(Objective(work.Seeded(work.Lookup), nn.MSELoss(), sgd, precision="fp64"), World(), work.FEED)
        for sgd in [partial(torch.optim.SGD, lr=0.1, momentum=0.9)] * 2
    ]
    for step in range(4):
        if step == 2:
            replicas[1].load_state_dict(replicas[0].state_dict())
            momenta = replicas[0].state_dict()["shared"]["optimizer"]["state"].values()
            assert all(not one["momentum_buffer"].is_sparse for one in momenta)
        for replica in replicas[: 1 if step < 2 else 2]:
            replica.gradients(batch())
            replica.apply()
    for weight, other in zip(*(replica.parameters for replica in replicas), strict=True):
        torch.testing.assert_close(weight, other, rtol=0, atol=1e-15)


def test_gradient_in_two_parts_raises():
    class Recomputed(work.Tied):
        """Two recomputed blocks share a weight."""

        def forward(self, x):
            hidden = checkpoint(self.first, x.requires_grad_(), use_reentrant=True)
            return checkpoint(self.second, hidden, use_reentrant=True).sum(-1)

    replica, _, _ = attached(Recomputed)
    with pytest.raises(InvalidInput, match="use_reentrant=False"):
        replica.gradients(batch())
