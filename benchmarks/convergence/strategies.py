"""The strategies that the benchmark compares, each with its settings for both tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from sparkdl import AllReduce, Cast, ElasticAveraging, Gossip, Layered, LocalSGD, OneBit, PowerSGD, TopK
from sparkdl.training.strategies import Strategy

BASELINE = "AllReduce"
WORKERS = 4
EVERY = 8  # steps between two exchanges
WARMUP = 50  # uncompressed first steps

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


def settings(optimizer: OptimizerOf, rates: Mapping[str, float], *, reset_inner: bool) -> dict[str, Setting]:
    """All strategies, the baseline first; ``rates`` are the learning rates."""
    strategies: dict[str, Strategy] = {
        BASELINE: AllReduce(),
        "Cast": AllReduce(reduce=Cast("bf16")),
        "TopK": AllReduce(reduce=TopK(0.05)),
        "OneBit": AllReduce(reduce=OneBit(warmup=WARMUP)),
        "PowerSGD": AllReduce(reduce=PowerSGD(4, warmup=WARMUP)),
        "Layered": AllReduce(reduce=Layered(inner=2)),
        "LocalSGD": LocalSGD(EVERY),
        "block_momentum": LocalSGD.block_momentum(WORKERS, every=EVERY, reset_inner=reset_inner),
        "slowmo": LocalSGD.slowmo(EVERY, reset_inner=reset_inner),
        "diloco": LocalSGD.diloco(EVERY),
        "ElasticAveraging": ElasticAveraging(EVERY),
        "Gossip": Gossip("ring", EVERY),
    }
    return {
        name: Setting(strategy, adamw if name == "diloco" else optimizer, rates.get(name, rates[BASELINE]))
        for name, strategy in strategies.items()
    }


SETTINGS = {
    "digits": settings(nesterov, {BASELINE: 0.1, "diloco": 0.002}, reset_inner=True),
    "shakespeare": settings(adamw, {BASELINE: 0.012}, reset_inner=False),
}
