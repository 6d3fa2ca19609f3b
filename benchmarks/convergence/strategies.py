"""The strategies that the benchmark compares, each with its settings for both tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from sparkdl import AllReduce, Cast, ElasticAveraging, Gossip, Layered, LocalSGD, OneBit, PowerSGD, TopK
from sparkdl.training.strategies import Strategy
from sparkdl.training.strategies.reducers import Reducer

BASELINE = "AllReduce"
EVERY = 8  # steps between two exchanges
WARMUP = 40  # first steps that all-reduce uncompressed gradients, a tenth of all

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


def compressed(rank: int, warmup: int) -> dict[str, Strategy]:
    """All-reduce with each reducer, the baseline first; ``warmup`` is that of ``OneBit``."""
    reducers: dict[str, Reducer] = {
        "Cast": Cast("bf16"),
        "TopK": TopK(0.05),
        "OneBit": OneBit(warmup),
        "PowerSGD": PowerSGD(rank, WARMUP),
    }
    return {BASELINE: AllReduce(), **{name: AllReduce(reduce=reducer) for name, reducer in reducers.items()}}


def chosen(
    strategies: Mapping[str, Strategy], optimizer: OptimizerOf, rates: Mapping[str, float]
) -> dict[str, Setting]:
    """Settings with the baseline's learning rate, unless ``rates`` has the strategy's own; DiLoCo takes AdamW."""
    return {
        name: Setting(strategy, adamw if name == "diloco" else optimizer, rates.get(name, rates[BASELINE]))
        for name, strategy in strategies.items()
    }


DIGITS: dict[str, Strategy] = {
    **compressed(rank=4, warmup=WARMUP),
    "Layered": AllReduce(reduce=Layered(inner=2)),
    "LocalSGD": LocalSGD(EVERY),
    "block_momentum": LocalSGD.block_momentum(4, every=EVERY),
    "slowmo": LocalSGD.slowmo(EVERY, reset_inner=True),
    "diloco": LocalSGD.diloco(EVERY, warmup=WARMUP),
    "ElasticAveraging": ElasticAveraging(EVERY),
    "Gossip": Gossip("ring", EVERY),
}

SHAKESPEARE: dict[str, Strategy] = {
    **compressed(rank=8, warmup=100),
    "Layered": AllReduce(reduce=Layered(inner=1)),
    "LocalSGD": LocalSGD(EVERY),
    "LocalSGD(4)": LocalSGD(4),
    # A new state of Adam would need more than a block to settle.
    "block_momentum": LocalSGD.block_momentum(2, every=EVERY, reset_inner=False, warmup=WARMUP),
    "slowmo": LocalSGD.slowmo(EVERY, warmup=WARMUP),
    "diloco": LocalSGD.diloco(EVERY, warmup=WARMUP),
    "ElasticAveraging": ElasticAveraging(4),
    "Gossip": Gossip("ring", EVERY),
}

SETTINGS = {
    "digits": chosen(DIGITS, nesterov, {BASELINE: 0.2, "OneBit": 0.1, "diloco": 0.005}),
    "shakespeare": chosen(
        SHAKESPEARE, adamw, {BASELINE: 0.036, "TopK": 0.012, "diloco": 0.016, "ElasticAveraging": 0.04}
    ),
}
