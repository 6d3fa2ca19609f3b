"""Elastic averaging equals workers that train one after the other, by the equations of the paper."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from sparkdl.training.strategies.elastic_averaging import ElasticAveraging
from tests.contracts.strategy_contract import Case, StrategyContract
from tests.training.strategies.serial import Trainee, assert_ends_as, trained_serially
from tests.training.strategies.test_local_sgd import CASE, fit


class TestElasticAveraging(StrategyContract):
    strategy = ElasticAveraging(every=4)

    @pytest.fixture
    def cluster(self, four):
        return four


class Springs:
    """The synchronous form of EASGD."""

    def __init__(self, case: Case, beta: float) -> None:
        self.beta, self.center = beta, Trainee(case, case.training()).vector

    def __call__(self, trainees: list[Trainee]) -> None:
        before, alpha = [trainee.vector for trainee in trainees], self.beta / len(trainees)
        for trainee, x in zip(trainees, before, strict=True):
            trainee.vector = x - alpha * (x - self.center)
        self.center = (1 - self.beta) * self.center + self.beta * torch.stack(before).mean(0)


NESTEROV = partial(torch.optim.SGD, lr=0.02, momentum=0.9, nesterov=True)


@pytest.mark.parametrize("case", [CASE, replace(CASE, optimizer=NESTEROV, epochs=3)], ids=["EASGD", "EAMSGD"])
@pytest.mark.parametrize("strategy", [ElasticAveraging(every=3), ElasticAveraging(every=1, beta=0.4)])
def test_gang_equals_serial_workers_and_ends_with_the_center(four, strategy, case):
    """Each worker trains on from its own weights after an epoch."""
    workers = fit(four, case, strategy)
    springs = Springs(case, strategy.beta)
    trained_serially(case, workers, strategy.every, springs)
    assert_ends_as(workers, springs.center, case)
