"""Gossip equals workers that train one after the other and multiply by a doubly stochastic matrix."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from sparkdl.training.strategies.gossip import Gossip, neighbours
from tests.contracts.strategy_contract import StrategyContract
from tests.training.strategies.serial import Trainee, assert_ends_as, trained_serially
from tests.training.strategies.test_local_sgd import CASE, fit


class TestGossip(StrategyContract):
    strategy = Gossip("random")

    @pytest.fixture
    def cluster(self, four):
        return four


def mixing(strategy: Gossip, size: int, exchange: int) -> Tensor:
    """The mixing matrix W of an exchange."""
    matrix = torch.zeros(size, size, dtype=torch.float64)
    for rank in range(size):
        among = [rank, *neighbours(strategy, rank, size, exchange)]
        matrix[rank, among] = 1 / len(among)
    return matrix


@pytest.mark.parametrize("graph", ["ring", "random"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_mixing_matrix_is_doubly_stochastic_and_reaches_consensus(graph, size):
    product = torch.eye(size, dtype=torch.float64)
    for exchange in range(60):
        matrix = mixing(Gossip(graph), size, exchange)
        assert torch.equal(matrix, matrix.T)
        torch.testing.assert_close(matrix.sum(1), torch.ones(size, dtype=torch.float64))
        product = matrix @ product
    torch.testing.assert_close(product, torch.full_like(product, 1 / size), rtol=0, atol=1e-3)


def test_pairs_follow_from_seed_and_exchange():
    draws = [[neighbours(Gossip("random", seed=seed), 0, 16, number) for number in range(8)] for seed in (0, 1, 0)]
    assert draws[0] == draws[2] != draws[1]
    assert len({*map(tuple, draws[0])}) > 3


class Mixes:
    """Multiplies by the mixing matrix; an epoch ends with the mean."""

    def __init__(self, strategy: Gossip) -> None:
        self.strategy, self.exchanges, self.inside = strategy, 0, 0

    def __call__(self, trainees: list[Trainee]) -> None:
        matrix = mixing(self.strategy, len(trainees), self.exchanges)
        self._set(trainees, matrix @ torch.stack([trainee.vector for trainee in trainees]))
        self.exchanges += 1

    def end_epoch(self, trainees: list[Trainee]) -> None:
        vectors = torch.stack([trainee.vector for trainee in trainees])
        self._set(trainees, vectors.mean(0).expand_as(vectors))

    def _set(self, trainees: list[Trainee], vectors: Tensor) -> None:
        for trainee, vector in zip(trainees, vectors, strict=True):
            trainee.vector = vector


@pytest.mark.parametrize("strategy", [Gossip(), Gossip(every=7), Gossip("random", seed=3)])
def test_gang_equals_serial_workers(four, strategy):
    """With a momentum, which each worker keeps."""
    case = replace(CASE, optimizer=partial(torch.optim.SGD, lr=0.02, momentum=0.9))
    workers, mixes = fit(four, case, strategy), Mixes(strategy)
    trainees = trained_serially(case, workers, strategy.every, mixes, mixes.end_epoch)
    assert_ends_as(workers, trainees[0].vector, case)
    elements = sum(array.size + 1 for array in workers[0]["parameters"].values())
    partners = 2 if strategy.graph == "ring" else 1
    assert workers[0]["report"]["bytes_per_step"] == partners * 8 * elements // strategy.every
