"""The strategies that the benchmark compares: one line each."""

from __future__ import annotations

from dataclasses import dataclass

from sparkdl import AllReduce, Cast, ElasticAveraging, Gossip, Layered, LocalSGD, OneBit, PowerSGD, TopK
from sparkdl.training.strategies import Strategy

BASELINE = "AllReduce"

BARS = {"periodic": 5.0, "compressed": 3.0}
"""Family -> how many times faster than the baseline its best strategy has to reach the target."""


@dataclass(frozen=True)
class Candidate:
    """A strategy of the table.

    Attributes:
        strategy: the strategy.
        period: steps from one exchange to the next; only whole periods are timed.
        family: of ``BARS``; empty for none.
        order: a letter for the host of each rank; empty for a worker on each host.
    """

    strategy: Strategy
    period: int = 1
    family: str = ""
    order: str = ""


LAYERED = AllReduce(reduce=Layered())
"""All-reduce inside each host, then between the hosts."""

CANDIDATES = {
    BASELINE: Candidate(AllReduce()),
    "LocalSGD(16)": Candidate(LocalSGD(16), 16, "periodic"),
    "ElasticAveraging(16)": Candidate(ElasticAveraging(16, beta=0.9), 16),
    "Gossip(ring, 16)": Candidate(Gossip("ring", 16), 16),
    "Cast(bf16)": Candidate(AllReduce(reduce=Cast("bf16")), family="compressed"),
    "TopK(0.01)": Candidate(AllReduce(reduce=TopK(0.01)), family="compressed"),
    "OneBit": Candidate(AllReduce(reduce=OneBit(warmup=0)), family="compressed"),
    "PowerSGD(4)": Candidate(AllReduce(reduce=PowerSGD(4, warmup=0)), family="compressed"),
    "LocalSGD(16, bf16)": Candidate(LocalSGD(16, reduce=Cast("bf16")), 16),
    "AllReduce, aabb": Candidate(AllReduce(), order="aabb"),
    "Layered, aabb": Candidate(LAYERED, order="aabb"),
}
