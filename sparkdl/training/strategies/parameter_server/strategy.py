"""The strategy ``ParameterServer``: one clock from synchronous to asynchronous.

Every worker, or one worker of each host, hosts a parameter shard: some rows of the weights and their optimizer. Workers
push gradients to all shards and pull weights from them, so that a worker sends as many bytes as in a ring all-reduce
(M. Li et al., Scaling distributed machine learning with the parameter server, OSDI 2014). ``shard`` has the rules of
the clocks, and ``row_exchange`` the rows of tables.

With ``every=n``, worker ``i`` takes local steps ``w_i <- w_i - eta g_i`` with the rate of its optimizer. It pushes the
sum of ``n`` gradients ``p_i g_i`` as one (Downpour SGD of J. Dean et al., 2012, with n_push = n_fetch = n).
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from sparkdl.cluster.group.world import Group
from sparkdl.data.batch import Batch
from sparkdl.data.clock import Clock
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields, Count, Natural, Rule
from sparkdl.io.weights import Slice
from sparkdl.telemetry.emit import notify
from sparkdl.training.cost.cost_model import Exchange
from sparkdl.training.cost.traffic import Hosts, parameter_server
from sparkdl.training.layouts import Layout, Replica
from sparkdl.training.layouts.passes import ModuleReplica
from sparkdl.training.layouts.table import tables_of
from sparkdl.training.objective.objective import Objective
from sparkdl.training.objective.optimizers import check_elementwise, has_momentum, open_optimizer, takes_names
from sparkdl.training.strategies import OPTIMIZER_OF, Strategy, Sync, exchange_phase
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.parameter_server.exchange import ShardExchange
from sparkdl.training.strategies.parameter_server.host_tier import HostTier, exchanges_of_tiers
from sparkdl.training.strategies.parameter_server.placement import no_rows
from sparkdl.training.strategies.parameter_server.significance import Significance

FULL_STEPS = {
    *("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"),
    *("RowAdagrad", "SparseAdam"),
}
"""Optimizers whose steps do not shrink with the gradient: each push moves the weights by a full step."""

Staleness = Annotated[
    float, Rule("a whole number of at least 0, or math.inf", lambda s: s >= 0 and (s == math.inf or s == int(s)))
]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ParameterServer(CheckedFields, Strategy):
    """Workers push gradients to parameter shards and pull weights from them, with a bound on the distance of clocks.

    With ``staleness=0``, ``every=1``, no backup and no filter, the algorithm equals ``AllReduce()``, which is faster
    since it overlaps. Staleness helps if a few workers compute or send slowly for a while; a stopped host stops its
    shard too. At each epoch's end, and with other settings at each checkpoint, all workers wait for each other and have
    equal weights. Otherwise each worker then clips its own gradient, and a pull overwrites weights that a callback
    changes.

    Attributes:
        staleness: exchanges by which a worker may be ahead of the slowest: 0 for synchronous steps, ``math.inf`` for
            asynchronous ones.
        every: steps between two exchanges.
        backup: pushes of a clock for which nobody waits, below the number of workers; with ``staleness=0`` alone.
        filter: pushes leave out what would change a weight by less than a fraction of its size; None pushes all. The
            optimizer must be without momentum, and ``backup`` 0.
        optimizer: class or factory of the shards' optimizer, which must be elementwise; None for the objective's. Its
            learning rate is multiplied by the schedule of the objective's.
        inside: how the workers of a host sum their gradients, so that one worker of each host, its leader, hosts a
            shard, pushes and pulls; the other settings are then of hosts. None: every worker pushes for itself.

    Raises:
        InvalidInput: a field is out of range.
    """

    staleness: Staleness = 0
    every: Count = 1
    backup: Natural = 0
    filter: Significance | None = None
    optimizer: Callable[..., Any] | None = None
    inside: AllReduce | None = None

    @property
    def replicated(self) -> bool:
        """Whether all replicas are bit-identical after each step, and no worker keeps anything else."""
        return self.staleness == 0 and self.backup == 0 and self.every == 1 and self.filter is None

    def _check(self) -> None:
        if self.backup and self.staleness:
            raise InvalidInput(
                f"ParameterServer.backup is {self.backup} and staleness is {self.staleness:g}; expected one of them to "
                "be 0: with staleness nobody waits for the slowest worker's push."
            )
        if self.backup and self.filter is not None:
            raise InvalidInput(
                f"ParameterServer.backup is {self.backup} and filter is {self.filter}; expected one of them: a dropped "
                "push may have changes of several steps."
            )

    def check(self, objective: Objective, module: nn.Module, layout: Layout, workers: int) -> None:
        """Raise InvalidInput if shards cannot train the module."""
        sparse = [name for name, part in module.named_modules() if getattr(part, "sparse", False) is True]
        sliced = layout.multiple(workers) > 1 or layout.state_shards(workers) > 1
        tiered = self.inside is not None and bool(tables_of(module))
        problems = {
            f"backup is {self.backup}, and there are {workers} workers; expected a lower number": self.backup
            >= workers,
            "precision is 'fp16', which scales by all gradients of a step; expected 'bf16'": objective.precision
            == "fp16",
            f"layout is {layout}, whose workers hold slices of the model; expected layout=Replicated()": sliced,
            "inside is set, whose leaders alone host shards, and the model has a Table; expected inside=None": tiered,
            f"{', '.join(sparse)} has sparse gradients, and shards add dense ones; expected sparse=False": sparse,
        }
        for problem, there in problems.items():
            if there:
                raise InvalidInput(f"strategy is ParameterServer: {problem}, or strategy=AllReduce().")
        names = [name for name, value in module.named_parameters() if value.requires_grad]
        factory = self.optimizer or objective.optimizer
        names = names if takes_names(factory) else ["weight"]
        check_elementwise(factory, names)
        if self.filter is not None and has_momentum(factory, names):
            raise InvalidInput(
                f"strategy is ParameterServer with filter={self.filter}, and the optimizer has momentum, in which a "
                "change that was kept back counts again; expected an optimizer such as SGD(momentum=0) or Adagrad, or "
                "filter=None."
            )

    def attach(self, replica: Replica, group: Group) -> ParameterServerSync:
        """Attach to the replica, and open a shard and the connections to the other workers' shards."""
        if not {*map(str, replica.slices)} <= {*replica.divided} or not replica.has_all_modules:
            raise InvalidInput("strategy is ParameterServer, and the replica has slices; expected layout=Replicated().")
        return ParameterServerSync(self, replica, group)

    def exchanges(self, parameters: Sequence[nn.Parameter], hosts: Hosts) -> Sequence[Exchange]:
        """A push to all shards and a pull from them, in every ``every``-th step; nothing of them overlaps.

        With ``filter``, a push counts as one of all numbers.
        """
        size = sum(parameter.nbytes for parameter in parameters)
        if self.inside is None:
            return [Exchange(parameter_server(size, hosts, None) * (1 / self.every))]
        return exchanges_of_tiers(self.inside, parameters, hosts, self.every)


class ParameterServerSync(Sync):
    """``ParameterServer`` attached to one replica."""

    def __init__(self, strategy: ParameterServer, replica: Replica, group: Group) -> None:
        self.replica, self.group, self._strategy = replica, group, strategy
        self.replicated, self.settles = strategy.replicated, not strategy.replicated
        self._names = [name for name, value in replica.module.named_parameters() if value.requires_grad]
        self._tier = None if strategy.inside is None else HostTier(strategy.inside, replica, group)
        self._leads = self._tier is None or self._tier.leads
        servers = group if self._tier is None else self._tier.leaders
        if self._tier is not None and strategy.backup >= self._tier.hosts:
            raise InvalidInput(
                f"ParameterServer.backup is {strategy.backup}, and there are {self._tier.hosts} hosts; expected a "
                "lower number, or inside=None."
            )
        self._servers = servers.size
        tables = replica.tables if isinstance(replica, ModuleReplica) else None
        if tables is not None:
            replica.lockstep = False
        self._exchange = ShardExchange(
            replica.parameters,
            servers,
            self._open_optimizer,
            replica.max_grad_norm if strategy.replicated else None,
            tables=tables,
            replicated=strategy.replicated,
            held=() if self._leads else [no_rows(replica.parameters)],
            filtered=strategy.filter is not None,
            staleness=strategy.staleness,
            backup=strategy.backup,
        )
        self._pushes = 0  # of the run
        self.slices: dict[str | int, Slice] = {
            OPTIMIZER_OF + name: part for name, part in zip(self._names, self._exchange.portion.slices, strict=True)
        }
        groups = self._exchange.shard.optimizer.param_groups
        names: tuple[str, ...] = ("lr", "weight_decay")  # what a worker may change in options of the shards' own
        self._own = [{name: float(one[name]) for name in names if name in one} for one in groups]
        self._rate = self._leading_rate()  # before a scheduler changes it
        self._settled = self.settles  # whether no step has followed
        if group.rank == 0 and group.size > 1:
            self._advise()

    @property
    def bytes_per_step(self) -> int:
        """Bytes that this worker sends per step on average, if exchanges have ``every`` steps; heads excluded."""
        every = self._strategy.every
        return int(self._exchange.bytes / every + (0 if self._tier is None else self._tier.bytes(every)))

    def start_epoch(self) -> None:
        """Wait until all workers have read or restored their tables, which the first pushes change."""
        if self._exchange.shard.tables is not None:
            with exchange_phase():
                self.group.gather(None)

    def update(self, clock: Clock, batch: Batch) -> None:
        """Take a step: a push to all shards and a pull, or a local step between two exchanges."""
        if self._settled:
            self._exchange.open()
            self._settled = False
        share = batch.weight_fraction if self._tier is None else self._tier.reduce(batch.weight_fraction)
        self._pushes = clock.step // self._strategy.every + 1
        if self.replicated:  # before the replica clips, since the norm is of the sum
            self._exchange.collect(share)
        self.replica.apply(step=lambda: self._step(share))

    def end_epoch(self, share: float) -> None:
        """Settle, and average the buffers."""
        self.settle()
        super().end_epoch(share)

    def settle(self) -> None:
        """Wait for all workers, and set all replicas to the same weights, unless they are."""
        if self.settles and not self._settled:
            with exchange_phase():
                self._exchange.settle(self._options())
                if self._tier is not None:
                    self._tier.send_weights()
                if self._strategy.backup:
                    self._forget()
            self._settled = True

    def epoch_columns(self) -> dict[str, float]:
        """Mean and largest distance of clocks with staleness, and dropped pushes with backup workers."""
        shard = self._exchange.shard
        counts = (shard.dropped, shard.distances) if self._leads else (0, Counter[int]())
        gathered = self.group.gather(counts) if self.settles else []
        dropped, distances = sum(one for one, _ in gathered), sum((one for _, one in gathered), Counter[int]())
        shard.dropped, shard.distances = 0, Counter()
        columns: dict[str, float] = {"dropped_pushes": dropped} if self._strategy.backup else {}
        if self._strategy.staleness:
            columns["clock_distance"] = sum(map(mul, distances, distances.values())) / max(1, distances.total())
            columns["max_clock_distance"] = max(distances, default=0)
        return columns

    def detach(self) -> None:
        """Close the shard, once all workers have their weights."""
        self.settle()
        self.group.sum_(torch.zeros(1, device=self.replica.parameters[0].device))
        self._exchange.close()
        if self._tier is not None:
            self._tier.detach()

    def state_dict(self) -> dict[str, Any]:
        """The state of the shard's optimizer, by the names of parameters; the rest begins anew."""
        optimizer, parameters = self._exchange.shard.optimizer, self._exchange.shard.parameters
        named = zip(self._names, parameters, strict=True)
        state = {OPTIMIZER_OF + name: dict(optimizer.state.get(one, {})) for name, one in named}
        shared, pushed = {"optimizer": state, "kind": type(optimizer).__qualname__}, [*self._exchange.pushed]
        if self._tier is None:
            return {"shared": shared, "pushed": pushed}
        # A worker without a shard has what is no slice, as all workers have.
        common = self._tier.of_leader({name: self._common(name, one) for name, one in state.items()})
        shared = shared if self._leads else shared | {"optimizer": common}
        return {"shared": shared, "pushed": pushed, "inside": self._tier.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state, for a replica that has its weights already."""
        saved, optimizer = state["shared"], self._exchange.shard.optimizer
        kind = type(optimizer).__qualname__
        if saved["kind"] != kind:
            raise InvalidInput(
                f"the saved state has the optimizer {saved['kind']}, and the shards have {kind}; "
                "resume with the optimizer of the saved run, or start a new run elsewhere."
            )
        for name, parameter in zip(self._names, self._exchange.shard.parameters, strict=True):
            if self._leads:
                optimizer.state[parameter] = saved["optimizer"].get(OPTIMIZER_OF + name, {})
        size, pulls = state.get("pushed", (0, 0))
        self._exchange.pushed = size, pulls
        if self._tier is not None and "inside" in state:
            self._tier.load_state_dict(state["inside"])

    def _common(self, name: str, state: Mapping[str, Any]) -> dict[str, Any]:
        sizes = self.slices[name].sizes
        return {key: one for key, one in state.items() if not (isinstance(one, Tensor) and one.shape == sizes)}

    def _forget(self) -> None:
        """Forget states of parameters on which some shard has not stepped: shards drop other pushes than each other."""
        states, parameters = self._exchange.shard.optimizer.state, self._exchange.shard.parameters
        stepped = {name for name, one in zip(self._names, parameters, strict=True) if states.get(one)}
        gathered = self.group.gather(sorted(stepped) if self._leads else None)
        common = set.intersection(*(set(names) for names in gathered if names is not None))
        for name, one in zip(self._names, parameters, strict=True):
            if name not in common:
                states.pop(one, None)

    def _step(self, share: float) -> None:
        local = not self.replicated and self._exchange.steps + 1 < self._strategy.every
        if local:
            self._local_step()
        if not self.replicated:
            self._exchange.collect(share)
        self.replica.optimizer.step()  # without gradients: so that a scheduler knows of the step
        if not local:
            with exchange_phase():
                significance = 0.0 if self._strategy.filter is None else self._strategy.filter.at(self._pushes)
                self._exchange.push_and_pull(self._options(), significance)
                if self._tier is not None:
                    self._tier.send_weights()

    @torch.no_grad()
    def _local_step(self) -> None:
        for group in self.replica.optimizer.param_groups:
            rate = float(group.get("lr", 0.0)) * (1 if group.get("maximize") else -1)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=rate)

    def _options(self) -> Sequence[Mapping[str, Any]]:
        """The options of each parameter group: those of the worker's optimizer, or the scheduled rates of its own."""
        if self._strategy.optimizer is not None:
            factor = self._leading_rate() / self._rate if self._rate else 1.0
            return [{name: one[name] * (factor if name == "lr" else 1.0) for name in one} for one in self._own]
        numbers, kinds = (torch.Tensor, np.generic), (int, float, tuple)
        return [
            {
                name: one.item() if isinstance(one, numbers) else one
                for name, one in group.items()
                if isinstance(one, (*numbers, *kinds))
            }
            for group in self.replica.optimizer.param_groups
        ]

    def _leading_rate(self) -> float:
        return max(float(group.get("lr", 0.0)) for group in self.replica.optimizer.param_groups)

    def _open_optimizer(self, parameters: Sequence[nn.Parameter]) -> Any:
        named = zip(self._names, parameters, strict=True)
        if self._strategy.optimizer is None:
            return self.replica.open_optimizer(named)
        return open_optimizer(self._strategy.optimizer, named)

    def _advise(self) -> None:
        shard, size = self._exchange.shard, self._servers
        kind, of_tables = type(shard.optimizer).__qualname__, {} if shard.tables is None else shard.tables.kinds
        if self._strategy.staleness and (full := FULL_STEPS.intersection(of_tables.values())):
            notify(
                f"with staleness={self._strategy.staleness:g}, each push of {size} workers is a full step of the "
                f"optimizer of tables, {', '.join(sorted(full))}; give the tables one with a lower learning rate."
            )
        if self._tier is not None and size == 1:
            notify(f"{self._strategy} has all workers on one host; AllReduce() does the same without a shard.")
        elif self.replicated:
            logger.info("%s takes the steps of AllReduce(), which overlaps its exchange.", self._strategy)
        elif self._strategy.staleness and kind in FULL_STEPS:
            divisor = f"{size}" if kind != "Adagrad" else f"the root of {size}"
            who = "workers" if self._tier is None else "hosts"
            notify(
                f"with staleness={self._strategy.staleness:g}, each push of {size} {who} is a full step of {kind}; "
                f"divide the learning rate by {divisor}."
            )
