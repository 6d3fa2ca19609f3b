"""Parallel SGD by itself: what it comes to with one part, and the weights of an average."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from sparkdl.cluster.local_tasks import InlineTaskRunner, dealt
from sparkdl.data.sampler import Plan, generator
from sparkdl.errors import InvalidInput
from sparkdl.rounds.aggregation import average, scaled
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.fedavg import FederatedAveraging
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.local_solvers import LocalSGDSolver, NewtonCG
from sparkdl.rounds.loop import Rounds
from sparkdl.training.objective import Objective
from tests.contracts.algorithm_contract import COLUMNS, data, jobs, objective, parts_of, states


def test_one_part_is_local_training():
    """Two epochs in the order of rows that the seed gives, by a loop of its own."""
    algorithm = ParallelSGD(rounds=1, epochs=2, shard_batch_size=8)
    first, last = states(algorithm, parts_of(90), 1)
    module = objective().build()
    module.load_state_dict(first["weights"])
    arrays = {name: torch.from_numpy(array) for name, array in data().items()}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    seed = generator(3, 0, 0).initial_seed()
    for epoch in range(2):
        for rows in Plan((90,), 8, seed).permutation(0, epoch).long().split(8):
            x, y, w = (arrays[name][rows] for name in ("x", "y", "w"))
            optimizer.zero_grad()
            ((module(x).squeeze(-1) - y).square() * w).sum().div(w.sum()).backward()
            optimizer.step()
    for name, tensor in module.state_dict().items():
        assert torch.allclose(last["weights"][name], tensor, rtol=1e-12)


@pytest.mark.parametrize("weighted", [True, False])
def test_parts_count_as_their_rows_weigh(weighted):
    """Each part's own training, put together by hand; a part without rows counts nothing."""
    algorithm, parts = ParallelSGD(weighted=weighted), parts_of(60, 0, 30)
    first, last = states(algorithm, parts, 1)
    w = data()["w"]
    shares = np.array([w[:60].sum(), 0.0, w[60:].sum()] if weighted else [1.0, 0.0, 1.0])
    trained = []
    for part in parts:
        update, _ = algorithm.map(objective(), first, part, None)
        trained.append(update["weights/weight"] / max(float(update["share"]), 1e-300))
    expected = sum(share * each for share, each in zip(shares / shares.sum(), trained, strict=True))
    assert torch.allclose(last["weights"]["weight"], expected, rtol=1e-12)


def test_whole_numbers_are_averaged_and_rounded():
    like = {"count": torch.tensor(0), "mean": torch.zeros(2)}
    one = scaled({"count": torch.tensor(3), "mean": torch.tensor([1.0, 0.0])}, 1.0)
    other = scaled({"count": torch.tensor(6), "mean": torch.tensor([0.0, 1.0])}, 2.0)
    found = average(ParallelSGD().reduce(one, other), like)
    assert found["count"].item() == 5
    assert found["count"].dtype == torch.int64
    assert torch.allclose(found["mean"], torch.tensor([1 / 3, 2 / 3]))


def test_statistics_of_batch_normalisation_are_averaged():
    """Running statistics are no parameters, and come back from the parts all the same."""
    wanted = Objective(_normalised, nn.MSELoss(), objective().optimizer, precision="fp64")
    first, last = states(ParallelSGD(shard_batch_size=10), parts_of(45, 45), 1, wanted)
    assert not torch.equal(first["weights"]["0.running_mean"], last["weights"]["0.running_mean"])
    assert last["weights"]["0.num_batches_tracked"].item() == 5


def _normalised() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))


# ---- what is not finite ------------------------------------------------------------------------------------------


class Masked(nn.Module):
    """A linear model with what is not finite in it, a mask as attention has it among that, and with statistics."""

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
            self.seen += x.detach().mean(0)
        return self.linear((x.unsqueeze(1) + self.mask).softmax(-1)[:, -1] * x)


MASKED = Objective(Masked, nn.MSELoss(), objective().optimizer, precision="fp64")
each_algorithm = pytest.mark.parametrize(
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


@each_algorithm
@pytest.mark.parametrize("light", [0, 30], ids=lambda rows: f"{rows} rows of no weight")
def test_what_is_not_finite_from_the_start_stays_as_it_is(algorithm, light, tmp_path):
    """Some parts have rows that weigh nothing, or none at all: what is not finite has no share that is 0 either."""
    w = data()["w"]
    w[len(w) - light :] = 0.0
    table = pa.table({name: list(array) for name, array in (data() | {"w": w}).items()})
    tables = [table.slice(0, 30), table.slice(30, 30), table.slice(60), table.slice(90)]
    first = algorithm.init(MASKED, 3)["weights"]
    rounds = Rounds(algorithm, MASKED, seed=3, memories=str(tmp_path), max_rounds=4)
    last = rounds.run(InlineTaskRunner(dealt(tables, COLUMNS, 4)))[0]["weights"]
    assert list(last) == list(first)
    for name in ("mask", "least", "frozen"):
        assert torch.equal(last[name].nan_to_num(7.0), first[name].nan_to_num(7.0))
    assert all(bool(torch.isfinite(last[name]).all()) for name in ("linear.weight", "linear.bias", "seen"))
    assert not torch.equal(last["linear.weight"], first["linear.weight"])
    assert bool(last["seen"].any()) == algorithm.uses_optimizer


def test_what_is_trained_is_refused_where_it_is_not_finite():
    wanted = replace(MASKED, model=partial(Masked, trained=True))
    with pytest.raises(InvalidInput, match=r"shard 0 in round 1: weights/mask is not finite"):
        Rounds(ParallelSGD(), wanted, max_rounds=2).run(jobs(3))


def test_statistics_that_become_infinite_are_refused():
    """They were finite in the state, so that all parts send them."""
    x = data()["x"] * 1e200
    table = {name: list(array) for name, array in (data() | {"x": x}).items()}
    wanted = Objective(Summed, nn.MSELoss(), objective().optimizer, precision="fp64")
    with pytest.raises(InvalidInput, match=r"shard 0 in round 1: weights/seen is not finite"):
        Rounds(ParallelSGD(), wanted, max_rounds=2).run(InlineTaskRunner(dealt(pa.table(table), COLUMNS, 2)))


class Summed(Masked):
    """Statistics that are squares, and a loss that does not grow."""

    def forward(self, x):
        if self.training:
            self.seen += x.detach().square().sum(0)
        return self.linear(x.sign())


def test_what_is_not_in_an_update_stays_as_it_is():
    like = {"a": torch.tensor([torch.inf]), "b": torch.zeros(2), "c": torch.tensor(3)}
    found = average(scaled({"b": torch.ones(2)}, 2.0), like)
    assert list(found) == ["a", "b", "c"]
    assert found["a"].tolist() == [torch.inf]
    assert found["b"].tolist() == [1.0, 1.0]
    assert found["c"].item() == 3
