"""The strategies that the benchmark compares: one line each."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass

from docs.examples.reducer import HalfPrecision
from sparkdl import AllReduce
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
    """

    strategy: Strategy
    period: int = 1
    family: str = ""


CANDIDATES = {
    BASELINE: Candidate(AllReduce()),
    "bfloat16": Candidate(AllReduce(reduce=HalfPrecision()), family="compressed"),
}


def layered() -> Strategy | None:
    """All-reduce in layers: first within each host, then between the hosts; None if sparkdl has none."""
    try:
        reducer = pkgutil.resolve_name("sparkdl.training.strategies.reducers.layered:Layered")
    except (ImportError, AttributeError):
        return None
    return AllReduce(reduce=reducer())
