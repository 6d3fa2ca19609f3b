"""Two tiers: the workers of a host sum gradients by all-reduce, and their leader exchanges with parameter shards.

With ``p_i`` the share of worker ``i`` in the rows of a step, host ``H`` has the share and the gradient

    p_H = sum_{i in H} p_i,        g_H = sum_{i in H} p_i g_i / p_H,

which the first worker of the host, its leader, pushes as one worker would. The leader sends the weights of each pull to
the other workers of its host (A. Mamidala et al., MXNET-MPI: embedding MPI parallelism in parameter server task model
for scaling deep learning, 2018, arXiv:1801.03855).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from sparkdl.cluster.group.mesh import Groups, by_host, leaders, split
from sparkdl.cluster.group.world import Group
from sparkdl.telemetry.emit import notify
from sparkdl.training.cost.cost_model import Exchange
from sparkdl.training.cost.traffic import Hosts, broadcast, one_per_host, parameter_server
from sparkdl.training.layouts import Replica
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.parameter_server.placement import portions


class HostTier:
    """The workers of one host; every worker of the gang makes its tier at the same place.

    Args:
        inside: how the workers of a host sum gradients.
        replica: this worker's replica.
        group: the workers of all hosts.

    Attributes:
        workers: the workers of this host.
        leaders: the leaders of all hosts, if this worker leads its own; else this worker alone.
    """

    def __init__(self, inside: AllReduce, replica: Replica, group: Group) -> None:
        self.workers, self.leaders = split(group, by_host), split(group, _leaders)
        self._replica, self._inside, self._hosts = replica, inside, group.hosts
        self._sums = inside.attach(replica, self.workers)
        [self._weights] = portions(replica.parameters, 1)
        self._buffer = self._weights.allocate().to(replica.parameters[0].device) if self.workers.size > 1 else None

    @property
    def leads(self) -> bool:
        """Whether this worker is the leader of its host."""
        return self.workers.rank == 0

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return len({*self._hosts})

    def bytes(self, every: int) -> float:
        """Bytes that a worker sends inside its host in a mean step, if each ``every``-th step pulls weights."""
        weights = sum(one.nbytes for one in self._replica.parameters)
        return self._sums.bytes_per_step + broadcast(weights, one_per_host(self.workers.size)).bytes / every

    def reduce(self, share: float) -> float:
        """Set the gradients to the host's ``g_H``; returns ``p_H``. ``share`` is the worker's own."""
        if self.workers.size == 1:
            return share
        total = torch.tensor([share], dtype=torch.float64, device=self._replica.parameters[0].device)
        self.workers.sum_(total)
        self._sums.reduce(share)
        if host_share := float(total):
            for parameter in self._replica.parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(host_share)
        return host_share

    @torch.no_grad()
    def send_weights(self) -> None:
        """Set the weights of all workers of the host to those of the leader."""
        if self._buffer is None:
            return
        parameters = [one.detach() for one in self._replica.parameters]
        pairs = [*zip(self._weights.views(self._buffer), self._weights.cut(parameters), strict=True)]
        if self.leads:
            for view, rows in pairs:
                view.copy_(rows)
        self.workers.broadcast_(self._buffer)
        for view, rows in pairs:
            rows.copy_(view)

    def of_leader(self, value: Any) -> Any:
        """The leader's value, on all workers of the host; a collective."""
        return self.workers.gather(value if self.leads else None)[0]

    def detach(self) -> None:
        """Release the replica."""
        self._sums.detach()

    def state_dict(self) -> dict[str, Any]:
        """The state of the host's sums, and the ranks of its workers."""
        return {"ranks": [*self.workers.ranks], "sums": self._sums.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the host's sums, unless the host has other workers."""
        if state["ranks"] == [*self.workers.ranks]:
            self._sums.load_state_dict(state["sums"])
        elif state["sums"] and self.leads:
            ranks = [*self.workers.ranks]
            notify(f"this host's workers are {ranks}, and were others before; the state of {self._inside} begins anew.")


def exchanges_of_tiers(
    inside: AllReduce, parameters: Sequence[nn.Parameter], hosts: Hosts, every: int
) -> Sequence[Exchange]:
    """The exchanges of a mean step: all-reduce in the largest host, pushes and pulls of leaders, and weights."""
    groups = [[hosts[rank] for rank in group] for group in by_host([*map(str, hosts)])]
    largest, size = max(groups, key=len), sum(parameter.nbytes for parameter in parameters)

    def mean(bytes_of: Callable[[Hosts], float]) -> float:
        return sum(len(group) * bytes_of(group) for group in groups) / len(hosts)

    def summed(group: Hosts) -> float:
        return sum(one.traffic.bytes for one in inside.exchanges(parameters, group))

    sums, factor = inside.exchanges(parameters, largest), mean(summed) / (summed(largest) or 1.0)
    between = parameter_server(size, [group[0] for group in groups], None)
    sent = between.bytes * len(groups) / len(hosts) + mean(lambda group: broadcast(size, group).bytes)
    pull = replace(between + broadcast(size, largest), bytes=sent) * (1 / every)
    scaled = [replace(one, traffic=replace(one.traffic, bytes=one.traffic.bytes * factor)) for one in sums]
    return [*scaled, Exchange(pull)]


def _leaders(hosts: Sequence[str]) -> Groups:
    return leaders(by_host(hosts))
