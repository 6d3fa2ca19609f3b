"""The strategies that the benchmark compares, each with its settings for both tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.convergence.tasks import TASKS
from sparkdl import AllReduce, Cast, ElasticAveraging, Gossip, Layered, LocalSGD, OneBit, PowerSGD, TopK
from sparkdl.training.strategies import Strategy

BASELINE = "AllReduce"
EVERY = 8  # steps between two exchanges
UNCOMPRESSED = 40  # first steps of OneBit and PowerSGD

OptimizerOf = Callable[[float], Callable[..., torch.optim.Optimizer]]


def nesterov(lr: float) -> Callable[..., torch.optim.Optimizer]:
    """SGD with Nesterov's momentum of 0.9."""
    return partial(torch.optim.SGD, lr=lr, momentum=0.9, nesterov=True)


def adamw(lr: float) -> Callable[..., torch.optim.Optimizer]:
    """AdamW with torch's defaults."""
    return partial(torch.optim.AdamW, lr=lr)


@dataclass(frozen=True)
class Setting:
    """A strategy in one task.

    Attributes:
        strategy: the strategy.
        optimizer: the optimizer of each worker, by its learning rate.
        lr: the largest learning rate of the schedule.
    """

    strategy: Strategy
    optimizer: OptimizerOf
    lr: float


def settings(optimizer: OptimizerOf, workers: int, rates: Mapping[str, float], *, warmup: int) -> dict[str, Setting]:
    """All strategies, the baseline first.

    Args:
        optimizer: of all strategies but DiLoCo, which has AdamW.
        workers: of the gang.
        rates: learning rates, the baseline's for strategies without one.
        warmup: steps of ``AllReduce`` before the first block, for strategies with an outer momentum.
    """
    reset = optimizer is not adamw  # a new state of Adam would need more than a block to settle
    strategies: dict[str, Strategy] = {
        BASELINE: AllReduce(),
        "Cast": AllReduce(reduce=Cast("bf16")),
        "TopK": AllReduce(reduce=TopK(0.05)),
        "OneBit": AllReduce(reduce=OneBit(warmup=UNCOMPRESSED)),
        "PowerSGD": AllReduce(reduce=PowerSGD(4, warmup=UNCOMPRESSED)),
        "Layered": AllReduce(reduce=Layered(inner=workers // 2)),
        "LocalSGD": LocalSGD(EVERY),
        "block_momentum": LocalSGD.block_momentum(workers, every=EVERY, reset_inner=reset, warmup=warmup),
        "slowmo": LocalSGD.slowmo(EVERY, reset_inner=reset, warmup=warmup),
        "diloco": LocalSGD.diloco(EVERY, warmup=warmup),
        "ElasticAveraging": ElasticAveraging(EVERY),
        "Gossip": Gossip("ring", EVERY),
    }
    return {
        name: Setting(strategy, adamw if name == "diloco" else optimizer, rates.get(name, rates[BASELINE]))
        for name, strategy in strategies.items()
    }


SETTINGS = {
    "digits": settings(nesterov, TASKS["digits"].workers, {BASELINE: 0.2, "diloco": 0.002}, warmup=0),
    "shakespeare": settings(adamw, TASKS["shakespeare"].workers, {BASELINE: 0.024}, warmup=40),
}
