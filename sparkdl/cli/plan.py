"""Predict seconds and bytes of a step for each strategy, without running it.

    sparkdl plan --config train.yaml --workers 16 --bandwidth 100 --latency 0.001 --compute 0.05

The model comes from the configuration of ``sparkdl train``, whose rows and output are not used, or from ``--model``.
``sparkdl doctor`` measures bandwidth and latency. ``compute`` is the time of a step on one worker. No Spark session
starts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from torch import nn

from sparkdl.cli.data import Data
from sparkdl.errors import InvalidInput
from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.training.strategies import Strategy
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.cost_model import Cost, described
from sparkdl.training.strategies.elastic_averaging import ElasticAveraging
from sparkdl.training.strategies.gossip import Gossip
from sparkdl.training.strategies.local_sgd import LocalSGD
from sparkdl.training.strategies.reducers.cast import Cast
from sparkdl.training.strategies.reducers.layered import Layered
from sparkdl.training.strategies.reducers.one_bit import OneBit
from sparkdl.training.strategies.reducers.powersgd import PowerSGD
from sparkdl.training.strategies.reducers.topk import TopK

STRATEGIES: tuple[Strategy, ...] = (
    AllReduce(),
    *(AllReduce(reduce=reduce) for reduce in (Layered(), Cast(), TopK(), OneBit(), PowerSGD())),
    LocalSGD(every=10),
    ElasticAveraging(every=10),
    Gossip(every=10),
)
"""The rows of the table."""


def plan(
    *,
    bandwidth: float,
    latency: float,
    workers: int | None = None,
    workers_per_host: int = 1,
    compute: float = 0.0,
    estimator: DistributedEstimator | None = None,
    model: Callable[[], nn.Module] | None = None,
    data: Data | None = None,
    test: Data | None = None,
    output: str | None = None,
    overwrite: bool = False,
) -> None:
    """Predict seconds and bytes of a step for each strategy.

    Args:
        bandwidth: Mbit/s of a host's link in each direction, as sparkdl doctor measures it.
        latency: seconds that a small message takes between two hosts, as sparkdl doctor measures it.
        workers: their number; default: numWorkers of the estimator.
        workers_per_host: workers that share a host's link.
        compute: seconds of a step of one worker; default 0: only communication is compared.
        estimator: an estimator of sparkdl train, for its model, numWorkers and strategy.
        model: a class or function that makes the model, instead of an estimator.
        data: of a configuration of sparkdl train; not read.
        test: of a configuration of sparkdl train; not read.
        output: of a configuration of sparkdl train; not written.
        overwrite: of a configuration of sparkdl train; without effect.
    """
    if (estimator is None) == (model is None):
        raise InvalidInput(f"{'no' if model is None else 'a'} model and estimator are given; expected one of them.")
    workers = workers or (None if estimator is None else estimator.getNumWorkers())
    if workers is None:
        raise InvalidInput("workers is missing; expected their number, or an estimator with numWorkers.")
    if min(workers, workers_per_host) < 1:
        raise InvalidInput(f"workers is {workers} and workers_per_host {workers_per_host}; expected at least 1.")
    made = (model or estimator.getModel())()  # type: ignore[union-attr]  # one of them is given
    hosts = [rank // workers_per_host for rank in range(workers)]
    costs = [one.explain(made, hosts, bandwidth, latency, compute=compute) for one in candidates(estimator)]
    placed = f"{workers} workers, {workers_per_host} on each host"
    print(f"{placed}; {bandwidth:g} Mbit/s; latency {latency:g} s; {compute:g} s of computation")
    print("\n".join(table(costs)))


def candidates(estimator: DistributedEstimator | None) -> Iterator[Strategy]:
    """All built-in strategies, and the estimator's; a warning if the model knows no cost of the latter."""
    yield from STRATEGIES
    strategy = None if estimator is None else estimator.getStrategy()
    if strategy is None or strategy in STRATEGIES:
        return
    if getattr(type(strategy), "exchanges", Strategy.exchanges) is Strategy.exchanges:
        warnings.warn(f"strategy={described(strategy)} is ignored: its steps have no cost model.", stacklevel=2)
        return
    yield cast(Strategy, strategy)


def table(costs: Sequence[Cost]) -> Iterator[str]:
    """The lines of a table, the fastest strategy first."""
    wide = max(len(cost.strategy) for cost in costs)
    yield f"{'strategy':{wide}}  {'MB a step':>10}  {'messages':>8}  {'s a step':>10}  efficiency"
    for cost in sorted(costs, key=lambda cost: cost.seconds):
        efficiency = f"{cost.efficiency:10.0%}" if cost.compute else f"{'-':>10}"
        figures = f"{cost.bytes / 1e6:10.3f}  {cost.messages:8.1f}  {cost.seconds:10.4f}"
        yield f"{cost.strategy:{wide}}  {figures}  {efficiency}"
