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
WARMUP = 40  # first steps for digits that all-reduce uncompressed gradients, a tenth of all
TEXT_WARMUP = 60  # for characters, a twentieth

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


def reducing(reducers: Mapping[str, Reducer]) -> dict[str, Strategy]:
    """All-reduce with each reducer, the baseline first."""
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
    **reducing(
        {
            "Cast": Cast("bf16"),
            "TopK": TopK(0.05),
            "OneBit": OneBit(WARMUP),
            "PowerSGD": PowerSGD(4, WARMUP),
            "Layered": Layered(inner=2),
        }
    ),
    "LocalSGD": LocalSGD(EVERY),
    "block_momentum": LocalSGD.block_momentum(4, every=EVERY),
    "slowmo": LocalSGD.slowmo(EVERY, reset_inner=True),
    "diloco": LocalSGD.diloco(EVERY, warmup=WARMUP),
    "ElasticAveraging": ElasticAveraging(EVERY),
    "Gossip": Gossip("ring", EVERY),
}

SHAKESPEARE: dict[str, Strategy] = {
    # Adam takes the noise of coarse gradients for their size: OneBit and TopK send more than for SGD.
    **reducing(
        {
            "Cast": Cast("bf16"),
            "TopK": TopK(0.25),
            "OneBit": OneBit(warmup=480),
            "PowerSGD": PowerSGD(8, TEXT_WARMUP),
            "Layered": Layered(inner=1),
        }
    ),
    "LocalSGD": LocalSGD(EVERY),
    "LocalSGD, OneBit": LocalSGD(4, reduce=OneBit(warmup=20)),
    # A new state of Adam would need more than a block to settle.
    "block_momentum": LocalSGD.block_momentum(2, every=16, reset_inner=False, warmup=TEXT_WARMUP),
    "slowmo": LocalSGD.slowmo(16, warmup=TEXT_WARMUP),
    "diloco": LocalSGD.diloco(EVERY, momentum=0.6, warmup=TEXT_WARMUP),
    "ElasticAveraging": ElasticAveraging(2),
    "Gossip": Gossip("ring", EVERY),
}

TEXT_RATES = {
    BASELINE: 0.03,
    "TopK": 0.012,
    "OneBit": 0.016,
    "PowerSGD": 0.012,
    "LocalSGD": 0.012,
    "LocalSGD, OneBit": 0.016,
    "block_momentum": 0.012,
    "slowmo": 0.008,
    "diloco": 0.008,
    "ElasticAveraging": 0.02,
    "Gossip": 0.012,
}

# Settings of papers, and of strategies as they were before tuning; they have no bar.
UNTUNED: dict[str, Strategy] = {
    BASELINE: AllReduce(),
    "TopK(0.05)": AllReduce(reduce=TopK(0.05)),
    "OneBit(100)": AllReduce(reduce=OneBit(warmup=100)),
    "block_momentum(every=8)": LocalSGD.block_momentum(2, every=8, reset_inner=False, warmup=TEXT_WARMUP),
    "diloco(momentum=0.9)": LocalSGD.diloco(EVERY, warmup=TEXT_WARMUP),
}

UNTUNED_RATES = {**dict.fromkeys(UNTUNED, 0.012), BASELINE: 0.03, "diloco(momentum=0.9)": 0.006}

SETTINGS = {
    "digits": chosen(DIGITS, nesterov, {BASELINE: 0.2, "OneBit": 0.1, "diloco": 0.005}),
    "shakespeare": chosen(SHAKESPEARE, adamw, TEXT_RATES),
    "untuned": chosen(UNTUNED, adamw, UNTUNED_RATES),
}
