"""Workers that train one after the other in this process, which a gang with local steps must equal."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.training.strategies.allreduce import AllReduce
from tests.contracts import work
from tests.contracts.strategy_contract import Case, _mean, assert_equal, numbers


class Trainee:
    """One worker: weights as a vector, and its rows' weight since the last exchange."""

    def __init__(self, case: Case, training: Any) -> None:
        self.module = work.new_model(training).to(training.objective.dtype).train()
        self.optimizer = case.optimizer(self.module.parameters())
        self._case, self.weight = case, 0.0

    def step(self, batch: dict[str, Tensor]) -> None:
        if not len(batch["row"]):
            return
        case, weights = self._case, None if self._case.weight is None else batch[self._case.weight]
        weight = float(len(batch["row"]) if weights is None else weights.sum())
        if not weight:
            return
        self.optimizer.zero_grad()
        loss = copy.deepcopy(case.loss).double()
        _mean(loss, self.module(batch["x"]), batch[case.target], weights).backward()
        self.optimizer.step()
        self.weight += weight

    @property
    def vector(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.module.parameters()).detach().clone()

    @vector.setter
    def vector(self, vector: Tensor) -> None:
        nn.utils.vector_to_parameters(vector.clone(), self.module.parameters())


Exchange = Callable[[Sequence[Trainee]], None]


def trained_serially(
    case: Case,
    workers: Sequence[dict[str, Any]],
    every: int,
    exchange: Exchange,
    end_epoch: Exchange = lambda trainees: None,
    *,
    keeps_weights: bool = False,
) -> list[Trainee]:
    """Repeat the steps of ``workers``, the results of ``work.Fit``; exchange at the end of each block of steps.

    With ``keeps_weights``, the exchange resets the weights of rows itself.
    """
    rows = {name: torch.as_tensor(array) for name, array in numbers().items()}
    trainees = [Trainee(case, case.training(AllReduce())) for _ in workers]
    steps, inside = list(zip(*(worker["steps"] for worker in workers), strict=True)), 0
    for number, drawn in enumerate(steps, start=1):
        for trainee, own in zip(trainees, drawn, strict=True):
            trainee.step({name: column[torch.from_numpy(own)] for name, column in rows.items()})
        inside, ended = inside + 1, number % (len(steps) // case.epochs) == 0
        if inside == every or ended:
            exchange(trainees)
            inside = 0
            for trainee in () if keeps_weights else trainees:
                trainee.weight = 0.0
        if ended:
            end_epoch(trainees)
    return trainees


def assert_ends_as(workers: Sequence[dict[str, Any]], vector: Tensor, case: Case, tolerance: float = 1e-12) -> None:
    """All workers have the same parameters, and these are the vector's."""
    module = work.new_model(case.training()).double()
    nn.utils.vector_to_parameters(vector, module.parameters())
    for worker in workers:
        assert_equal(worker["parameters"], workers[0]["parameters"])
        assert_equal(worker["parameters"], work.arrays(dict(module.named_parameters())), tolerance)
