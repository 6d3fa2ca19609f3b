"""Parallel SGD: the contract, the shards' shares, integers, statistics, and tensors that are not finite."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from sparkdl.cluster.local_tasks import InlineTaskRunner, ShardedData
from sparkdl.errors import InvalidInput
from sparkdl.rounds.aggregation import average, scaled
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.fedavg import FederatedAveraging
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.local_solvers import LocalSGDSolver, NewtonCG
from sparkdl.rounds.loop import Rounds
from tests.contracts.algorithm_contract import COLUMNS, AlgorithmContract, data, jobs, objective, shards_of, states


class TestParallelSGD(AlgorithmContract):
    algorithm = ParallelSGD(rounds=40, shard_batch_size=4)


@pytest.mark.parametrize("weighted", [True, False])
def test_shards_count_by_mass_of_their_rows(weighted):
    """A shard without rows counts nothing."""
    algorithm, shards = ParallelSGD(weighted=weighted), shards_of(60, 0, 30)
    first, last = states(algorithm, shards, 1)
    w = data()["w"]
    shares = np.array([w[:60].sum(), 0.0, w[60:].sum()] if weighted else [1.0, 0.0, 1.0])
    updates = [algorithm.map(objective(), first, shard, None)[0] for shard in shards]
    trained = [update["weights/weight"] / max(float(update["share"]), 1e-300) for update in updates]
    expected = sum(share * each for share, each in zip(shares / shares.sum(), trained, strict=True))
    assert torch.allclose(last["weights"]["weight"], expected, rtol=1e-12)


def test_average_rounds_integers_and_keeps_absent_tensors():
    like = {"count": torch.tensor(0), "mean": torch.zeros(2), "mask": torch.tensor([torch.inf])}
    one = scaled({"count": torch.tensor(3), "mean": torch.tensor([1.0, 0.0])}, 1.0)
    other = scaled({"count": torch.tensor(6), "mean": torch.tensor([0.0, 1.0])}, 2.0)
    means = average(ParallelSGD().reduce(one, other), like)
    assert list(means) == list(like)
    assert (means["count"].item(), means["count"].dtype) == (5, torch.int64)
    assert torch.allclose(means["mean"], torch.tensor([1 / 3, 2 / 3]))
    assert means["mask"].tolist() == [torch.inf]


# ---- tensors that are not finite -------------------------------------------------------------------------------------


class Masked(nn.Module):
    """A linear model with statistics, an attention mask, an infinite buffer and a frozen NaN."""

    def __init__(self, *, trained: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        mask = torch.full((4, 4), -torch.inf).triu(1)
        if trained:
            self.mask = nn.Parameter(mask)
        else:
            self.register_buffer("mask", mask)
        self.register_buffer("least", torch.tensor(torch.inf))
        self.register_buffer("seen", torch.zeros(4))
        self.frozen = nn.Parameter(torch.tensor([1.0, torch.nan]), requires_grad=False)

    def forward(self, x):
        if self.training:
            self.seen += x.detach().square().mean(0)
        return self.linear((x.sign().unsqueeze(1) + self.mask).softmax(-1)[:, -1] * x.sign())


MASKED = replace(objective(), model=Masked)


@pytest.mark.parametrize(
    "algorithm",
    [
        ParallelSGD(shard_batch_size=8),
        ParallelSGD(shard_batch_size=8, weighted=False),
        FederatedAveraging("client", client_fraction=0.5),
        FederatedAveraging("client", client_fraction=1.0, quantize_bits=8),
        ConsensusADMM(solver=LocalSGDSolver(batch_size=8)),
        ConsensusADMM(solver=NewtonCG()),
    ],
    ids=str,
)
@pytest.mark.parametrize("light", [0, 30], ids=lambda rows: f"{rows} rows of weight 0")
def test_infinite_buffers_and_frozen_parameters_stay(algorithm, light, tmp_path):
    """Shards without rows, or without weights, do not multiply infinity by a share of 0."""
    w = data()["w"]
    w[len(w) - light :] = 0.0
    table = pa.table({name: list(array) for name, array in (data() | {"w": w}).items()})
    tables = [table.slice(0, 30), table.slice(30, 30), table.slice(60), table.slice(90)]
    first = algorithm.init(MASKED, 3)["weights"]
    rounds = Rounds(algorithm, MASKED, seed=3, memories=str(tmp_path), max_rounds=4)
    last = rounds.run(InlineTaskRunner(ShardedData(tables, COLUMNS, 4)))[0]["weights"]
    assert list(last) == list(first)
    for name in ("mask", "least", "frozen"):
        assert torch.equal(last[name].nan_to_num(7.0), first[name].nan_to_num(7.0))
    assert all(bool(torch.isfinite(last[name]).all()) for name in ("linear.weight", "linear.bias", "seen"))
    assert not torch.equal(last["linear.weight"], first["linear.weight"])
    assert bool(last["seen"].any()) == algorithm.uses_optimizer


def test_infinite_parameters_and_statistics_raise():
    with pytest.raises(InvalidInput, match=r"shard 0 in round 1: weights/mask is not finite"):
        Rounds(ParallelSGD(), replace(MASKED, model=partial(Masked, trained=True))).run(jobs(3))
    table = {name: list(array) for name, array in (data() | {"x": data()["x"] * 1e200}).items()}
    with pytest.raises(InvalidInput, match=r"shard 0 in round 1: weights/seen is not finite"):
        Rounds(ParallelSGD(), MASKED).run(InlineTaskRunner(ShardedData(pa.table(table), COLUMNS, 2)))
