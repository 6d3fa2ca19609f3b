"""Predict seconds and bytes of a step for each strategy, and memory of a worker, without running it.

    sparkdl plan --config train.yaml --workers 16 --bandwidth 100 --latency 0.001 --compute 0.05

The model comes from the configuration of ``sparkdl train``, whose rows and output are not used, or from ``--model``.
``sparkdl doctor`` measures bandwidth and latency. ``compute`` is the time of a step of one worker, on its share of the
batch. No Spark session starts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from torch import nn

from sparkdl.cli.data import Data
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import Count, checked
from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.training.cost.cost_model import Cost, Link, cost, described, shapes_of
from sparkdl.training.cost.layouts import layout_exchanges, replica_hosts, strategy_parameters
from sparkdl.training.cost.memory import ModelMemory
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.layouts.sharded import Sharded
from sparkdl.training.objective.module_factory import ModelFactory
from sparkdl.training.objective.objective import Objective
from sparkdl.training.strategies import Strategy
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.elastic_averaging import ElasticAveraging
from sparkdl.training.strategies.gossip import Gossip
from sparkdl.training.strategies.local_sgd import LocalSGD
from sparkdl.training.strategies.parameter_server.strategy import ParameterServer
from sparkdl.training.strategies.reducers.cast import Cast
from sparkdl.training.strategies.reducers.layered import Layered
from sparkdl.training.strategies.reducers.one_bit import OneBit
from sparkdl.training.strategies.reducers.powersgd import PowerSGD
from sparkdl.training.strategies.reducers.topk import TopK

STRATEGIES: tuple[Strategy, ...] = (
    AllReduce(),
    *(AllReduce(reduce=reduce) for reduce in (Layered(), Cast(), TopK(), OneBit(), PowerSGD())),
    # In none of them 8 is the default, which the table would leave out.
    LocalSGD(every=8),
    ElasticAveraging(every=8),
    Gossip(every=8),
    ParameterServer(),
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
        workers: their number, at least 1; default: numWorkers of the estimator.
        workers_per_host: workers that share a host's link.
        compute: seconds of a step of one worker, measured with numWorkers=1 and batchSize divided by the number of
            workers; default 0: only communication is compared.
        estimator: an estimator of sparkdl train, for its model, precision, numWorkers and strategy.
        model: a class or function that makes the model, instead of an estimator.
        data: of a configuration of sparkdl train; not read.
        test: of a configuration of sparkdl train; not read.
        output: of a configuration of sparkdl train; not written.
        overwrite: of a configuration of sparkdl train; without effect.
    """
    if (estimator is None) == (model is None):
        raise InvalidInput(f"{'no' if model is None else 'a'} model and estimator are given; expected one of them.")
    if workers is None and estimator is not None:
        workers = estimator.getNumWorkers()
    if workers is None:
        raise InvalidInput("workers is missing; expected their number, or an estimator with numWorkers.")
    size = checked(workers_per_host, Count, "workers_per_host")
    hosts = [rank // size for rank in range(checked(workers, Count, "workers"))]
    network = module(estimator, model)

    def explain(strategy: Strategy) -> Cost:
        # Not as a method: the user's class may lack those with a default.
        return Strategy.explain(strategy, network, hosts, bandwidth, latency, compute=compute)

    costs = [explain(one) for one in STRATEGIES]
    costs += configured(estimator, explain)
    costs += sharded(estimator, network, hosts, Link(bandwidth, latency), compute)
    placed = f"{workers} worker{'s' if workers > 1 else ''}, {workers_per_host} on each host"
    print(f"{placed}; {bandwidth:g} Mbit/s; latency {latency:g} s; {compute:g} s of computation")
    print("\n".join(table(costs)))
    for line in memory(estimator, network, workers):
        print(line)


def sharded(
    estimator: DistributedEstimator | None, network: nn.Module, hosts: Sequence[int], link: Link, compute: float
) -> list[Cost]:
    """The cost of the estimator's layout with its strategy between replicas, unless workers hold whole models."""
    if estimator is None or isinstance(layout := estimator.getLayout(), Replicated):
        return []
    strategy = estimator.getStrategy()
    try:
        exchanges = layout_exchanges(layout, network, hosts, estimator.getMicroBatches())
        parameters = strategy_parameters(layout, shapes_of(network), hosts)
        between = replica_hosts(layout, hosts)
        if len(between) > 1:
            exchanges += cast(Strategy, strategy).exchanges(parameters, between)
    except InvalidInput as error:
        warnings.warn(f"layout={described(layout)} is not in the table: {error}", stacklevel=2)
        return []
    name = f"{described(strategy)} over {described(layout)}"
    return [cost(name, exchanges, len(hosts), link, compute=compute)]


def memory(estimator: DistributedEstimator | None, network: nn.Module, workers: int) -> Iterator[str]:
    """Lines with the memory of a worker for weights, gradients, optimizer and a checkpoint, by layout."""
    if estimator is None:
        return
    layout = estimator.getLayout()
    units, replicas = (layout.units, layout.replicas) if isinstance(layout, Sharded) else (None, 1)
    needed = ModelMemory.of(estimator.objective(), network, units, saves=estimator.getRunDir() is not None)
    yield f"memory of a worker without activations: {needed.replicated(workers) / 1e6:.1f} MB with Replicated()"
    placed = f"Sharded({f'replicas={replicas}' * (replicas > 1)})"
    yield f"  {needed.sharded(max(1, workers // replicas)) / 1e6:.1f} MB with {placed}"


def module(estimator: DistributedEstimator | None, model: Callable[[], nn.Module] | None) -> nn.Module:
    """The module whose parameters workers exchange, in the dtype of the training, without the parameters' values."""
    objective = Objective(cast(ModelFactory, model), nn.MSELoss()) if estimator is None else estimator.objective()
    return objective.build(parameters=False)


def configured(estimator: DistributedEstimator | None, explain: Callable[[Strategy], Cost]) -> list[Cost]:
    """The cost of the estimator's strategy, unless it is a row already; a warning if it has no cost model."""
    strategy = None if estimator is None else estimator.getStrategy()
    if strategy is None or strategy in STRATEGIES:
        return []
    reason = "its steps have no cost model."
    if hasattr(strategy, "exchanges"):
        try:
            return [explain(cast(Strategy, strategy))]
        except InvalidInput as error:
            reason = str(error)
    warnings.warn(f"strategy={described(strategy)} is ignored: {reason}", stacklevel=2)
    return []


def table(costs: Sequence[Cost]) -> Iterator[str]:
    """The lines of a table, the fastest strategy first."""
    wide = max(len(one.strategy) for one in costs)
    yield f"{'strategy':{wide}}  {'MB a step':>10}  {'messages':>8}  {'s a step':>10}  efficiency"
    for one in sorted(costs, key=lambda one: one.seconds):
        efficiency = f"{one.efficiency:10.0%}" if one.compute else f"{'-':>10}"
        figures = f"{one.bytes / 1e6:10.3f}  {one.messages:8.1f}  {one.seconds:10.4f}"
        yield f"{one.strategy:{wide}}  {figures}  {efficiency}"
