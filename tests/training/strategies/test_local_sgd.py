"""Local SGD: its identities with all-reduce, with a serial simulation and with the papers' equations."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

from docs.examples.reducer import HalfPrecision
from sparkdl.cluster.group.world import Group, World
from sparkdl.cluster.inline import InlineCluster
from sparkdl.errors import InvalidInput
from sparkdl.training.callbacks.ema import EMA
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.buckets import make_buckets
from sparkdl.training.strategies.elastic_averaging import ElasticAveraging
from sparkdl.training.strategies.gossip import Gossip
from sparkdl.training.strategies.local_sgd import LocalSGD, LocalSGDSync
from tests.contracts import work
from tests.contracts.strategy_contract import (
    ADAM,
    CASES,
    SCHEMA,
    Case,
    StrategyContract,
    assert_equal,
    numbers,
    single_process,
    together,
)
from tests.training.strategies.serial import Trainee, assert_ends_as, trained_serially

PLAIN = partial(torch.optim.SGD, lr=0.1)
UNEVEN = {2: (0, 48), 4: (1, 0, 37, 10)}
CASE = Case(optimizer=PLAIN, batch_size=7, epochs=2)  # epochs of seven steps
WEIGHTED = replace(CASE, weight="weight")


class TestLocalSGD(StrategyContract):
    strategy = LocalSGD(every=4)

    @pytest.fixture
    def cluster(self, pair):
        return pair


def fit(cluster: Any, case: Case, strategy: Any, *, uneven: bool = True) -> list[dict[str, Any]]:
    data: Any = numbers()
    if uneven:
        ends = np.cumsum(UNEVEN[cluster.size])[:-1]
        columns = [np.split(array, ends) for array in data.values()]
        shards = [dict(zip(data, arrays, strict=True)) for arrays in zip(*columns, strict=True)]
        data = [pa.table({name: list(array) for name, array in shard.items()}, schema=SCHEMA) for shard in shards]
    return cluster.gang(work.Fit(case.training(strategy)), data, case.columns())


# ---- identities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "nesterov"),
    [
        ("SGD", False),
        ("minibatches of less than a row each", True),
        ("weights", False),
        ("class weights and ignored labels in minibatches", True),
        ("three pieces, class weights", False),
        ("tied weights", True),
    ],
)
def test_outer_steps_of_one_step_are_single_process_sgd(four, name, nesterov):
    """With plain SGD inside, the outer momentum is the momentum of one process, for any sizes of shards."""
    momentum = partial(torch.optim.SGD, lr=0.02, momentum=0.9, nesterov=nesterov)
    case = replace(CASES[name], optimizer=momentum)
    strategy = LocalSGD(every=1, lr=0.5, momentum=0.9, nesterov=nesterov)
    workers = fit(four, replace(case, optimizer=partial(torch.optim.SGD, lr=0.04)), strategy)
    expected = single_process(case.training(), numbers(), case.columns(), together(workers))
    assert_equal(workers[0]["parameters"], expected, 1e-12)
    assert_equal(workers[3]["parameters"], workers[0]["parameters"])


def test_warmup_is_all_reduce(pair):
    case = replace(CASE, optimizer=ADAM)
    train = partial(fit, pair, case, uneven=False)
    warm, exact = (train(strategy) for strategy in (LocalSGD(every=3, warmup=14), AllReduce()))
    assert_equal(warm[1]["parameters"], exact[0]["parameters"])
    assert warm[0]["report"]["bytes_per_step"] == exact[0]["report"]["bytes_per_step"] // 3  # of the steps to come
    short = train(LocalSGD(every=3, warmup=13))
    assert any((short[0]["parameters"][name] != array).any() for name, array in exact[0]["parameters"].items())


def test_warmup_is_followed_by_blocks(pair):
    """Post-local SGD: the first blocks of one step equal all-reduce with plain SGD."""
    workers = fit(pair, CASE, LocalSGD(every=2, warmup=3), uneven=False)
    steps = iter(range(14))

    def exchange(trainees: list[Trainee]) -> None:
        # Steps 1 to 3 are the warm-up; then blocks end after the steps 5 and 7, 9, 11, 13 and 14.
        if next(steps) in (0, 1, 2, 4, 6, 8, 10, 12, 13):
            w = sum(trainee.weight * trainee.vector for trainee in trainees)
            spread(trainees, w / sum(trainee.weight for trainee in trainees), reset=False)
            for trainee in trainees:
                trainee.weight = 0.0

    trainees = trained_serially(CASE, workers, 1, exchange, keeps_weights=True)
    assert_ends_as(workers, trainees[0].vector, CASE)


# ---- the serial simulation ----------------------------------------------------------------------------------------


class Outer:
    """The exchange by an optimizer of torch that takes the mean change for a gradient."""

    def __init__(self, case: Case, optimizer: Any, *, reset: bool = False) -> None:
        self.w = nn.Parameter(Trainee(case, case.training()).vector)
        self.optimizer, self.reset = optimizer([self.w]), reset

    def __call__(self, trainees: list[Trainee]) -> None:
        self.w.grad = change(self.w.detach(), trainees)
        self.optimizer.step()
        spread(trainees, self.w.detach(), reset=self.reset)


class BlockMomentum:
    """The equations of K. Chen and Q. Huo, by their names."""

    def __init__(self, case: Case, zeta: float, eta: float, *, nesterov: bool) -> None:
        self.W = self.broadcast = Trainee(case, case.training()).vector
        self.D, self.zeta, self.eta, self.nesterov = torch.zeros_like(self.W), zeta, eta, nesterov

    def __call__(self, trainees: list[Trainee]) -> None:
        self.D = self.eta * self.D - self.zeta * change(self.broadcast, trainees)
        self.W = self.W + self.D
        self.broadcast = self.W + self.eta * self.D if self.nesterov else self.W
        spread(trainees, self.broadcast, reset=True)


def change(w: Tensor, trainees: list[Trainee]) -> Tensor:
    total = sum(trainee.weight for trainee in trainees)
    return sum((trainee.weight / total * (w - trainee.vector) for trainee in trainees), torch.zeros_like(w))


def spread(trainees: list[Trainee], w: Tensor, *, reset: bool) -> None:
    for trainee in trainees:
        trainee.vector = w
        if reset:
            trainee.optimizer.state.clear()


SGD = torch.optim.SGD
MOMENTUM = replace(CASE, optimizer=partial(SGD, lr=0.1, momentum=0.9))
ADAMW = replace(CASE, optimizer=partial(torch.optim.AdamW, lr=0.01))


@pytest.mark.parametrize(
    ("strategy", "case", "outer"),
    [
        (LocalSGD(every=3), WEIGHTED, partial(Outer, optimizer=partial(SGD, lr=1.0))),
        (LocalSGD(every=3, reset_inner=True), MOMENTUM, partial(Outer, optimizer=partial(SGD, lr=1.0), reset=True)),
        (LocalSGD.slowmo(every=2), MOMENTUM, partial(Outer, optimizer=partial(SGD, lr=1.0, momentum=0.5))),
        (
            LocalSGD.diloco(every=3),
            ADAMW,
            partial(Outer, optimizer=partial(SGD, lr=0.7, momentum=0.9, nesterov=True)),
        ),
        (LocalSGD.block_momentum(4, every=3), MOMENTUM, partial(BlockMomentum, zeta=1.0, eta=0.75, nesterov=True)),
        (
            LocalSGD.block_momentum(4, every=3, nesterov=False, lr=0.5),
            MOMENTUM,
            partial(BlockMomentum, zeta=0.5, eta=0.75, nesterov=False),
        ),
    ],
    ids=["local SGD, row weights", "reset", "SlowMo", "DiLoCo", "Nesterov block momentum", "block momentum"],
)
def test_gang_equals_serial_workers(four, strategy, case, outer):
    """Seven steps an epoch: its end ends a shorter block."""
    workers = fit(four, case, strategy)
    trainees = trained_serially(case, workers, strategy.every, outer(case))
    assert_ends_as(workers, trainees[0].vector, case)


def test_constructors_have_the_defaults_of_the_papers():
    assert LocalSGD.diloco() == LocalSGD(500, 0.7, 0.9, nesterov=True)
    assert LocalSGD.slowmo() == LocalSGD(48, 1.0, 0.5)
    assert LocalSGD.block_momentum(8) == LocalSGD(50, 1.0, 0.875, nesterov=True, reset_inner=True)
    assert LocalSGD.block_momentum(1) == LocalSGD(50, reset_inner=True)
    assert LocalSGD.block_momentum(4, momentum=0.0, reset_inner=False) == LocalSGD(50)
    assert LocalSGD.block_momentum(1, momentum=0.9).nesterov
    assert LocalSGD.block_momentum(10, every=8, lr=0.7, reset_inner=False) == LocalSGD.diloco(8)
    assert LocalSGD.block_momentum(8, every=20, momentum=0.9, warmup=500, reset_inner=False) == LocalSGD(
        20, 1.0, 0.9, nesterov=True, warmup=500
    )


# ---- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [LocalSGD(every=5), ElasticAveraging(every=5), Gossip(every=5)])
def test_cost_model_predicts_the_counted_bytes(pair, strategy):
    counted = fit(pair, CASE, strategy)[0]["report"]["bytes_per_step"]
    assert counted == int(strategy.explain(CASE.model().double(), 2, 100.0, 0.0).bytes)


@pytest.mark.parametrize("strategy", [LocalSGD(every=3), ElasticAveraging(every=3)])
def test_reducer_sums_the_changes(pair, strategy):
    exact, near = (fit(pair, CASE, replace(strategy, reduce=reduce))[0] for reduce in (None, HalfPrecision()))
    assert_equal(near["parameters"], exact["parameters"], 0.01)
    assert any((near["parameters"][name] != array).any() for name, array in exact["parameters"].items())
    assert near["report"]["bytes_per_step"] < exact["report"]["bytes_per_step"]


def test_warmup_has_buckets_of_the_same_size():
    replica = Replicated().place(CASE.training(LocalSGD(2)).objective, World(), work.FEED)
    sync = LocalSGDSync(LocalSGD(every=2, warmup=1, bucket_bytes=64), replica, Group(0, 2))
    assert len(sync._warmup._buckets) == len(make_buckets(replica.parameters, 64)) > 1


def test_block_longer_than_an_epoch_warns():
    def trained(strategy: Any) -> None:
        InlineCluster().gang(work.Fit(CASE.training(strategy)), numbers(), CASE.columns())

    with pytest.warns(RuntimeWarning, match=r"every=8 is ignored: .* after step 7 of 8") as caught:
        trained(LocalSGD(every=8))
    assert len(caught) == 1
    trained(LocalSGD(every=7))
    trained(LocalSGD(every=6, warmup=3))


@pytest.mark.parametrize("strategy", [LocalSGD(every=2), ElasticAveraging(), Gossip()])
def test_callback_that_needs_equal_weights_raises(strategy):
    with pytest.raises(InvalidInput, match=f"callbacks has EMA, .* strategy is {type(strategy).__name__}"):
        replace(CASE.training(strategy), callbacks=[EMA()])


def test_momentum_of_nesterov_and_number_of_workers():
    with pytest.raises(InvalidInput, match="nesterov is True; expected False without momentum"):
        LocalSGD(every=2, nesterov=True)
    with pytest.raises(InvalidInput, match="workers is 0; expected"):
        LocalSGD.block_momentum(0)
