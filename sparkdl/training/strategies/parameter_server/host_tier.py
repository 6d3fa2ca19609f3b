"""Two tiers: the workers of a host sum gradients by all-reduce, and their leader exchanges with parameter shards.

With ``p_i`` the share of worker ``i`` in the rows of a step, host ``H`` has the share and the gradient

    p_H = sum_{i in H} p_i,        g_H = sum_{i in H} p_i g_i / p_H,

which the first worker of the host, its leader, pushes as one worker would. The leader sends the weights of each pull to
the other workers of its host (A. Mamidala et al., MXNET-MPI: embedding MPI parallelism in parameter server task model
for scaling deep learning, 2018, arXiv:1801.03855).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparkdl.cluster.group.mesh import Groups, by_host, leaders, split
from sparkdl.cluster.group.world import Group
from sparkdl.training.cost.traffic import broadcast, one_per_host
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
        self._replica, self._sums = replica, inside.attach(replica, self.workers)

    @property
    def leads(self) -> bool:
        """Whether this worker is the leader of its host."""
        return self.workers.rank == 0

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
        if self.workers.size == 1:
            return
        parameters: Sequence[Tensor] = self._replica.parameters
        [portion] = portions(parameters, 1)
        buffer = portion.allocate().to(parameters[0].device)
        pairs = [*zip(portion.views(buffer), portion.cut([*parameters]), strict=True)]
        if self.leads:
            for view, rows in pairs:
                view.copy_(rows)
        self.workers.broadcast_(buffer)
        for view, rows in pairs:
            rows.copy_(view)

    def of_leader(self, value: Any) -> Any:
        """The leader's value, on all workers of the host; a collective."""
        return self.workers.gather(value if self.leads else None)[0]

    def detach(self) -> None:
        """Release the replica."""
        self._sums.detach()

    def state_dict(self) -> dict[str, Any]:
        """The state of the host's sums."""
        return self._sums.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the host's sums."""
        self._sums.load_state_dict(state)


def _leaders(hosts: Sequence[str]) -> Groups:
    return leaders(by_host(hosts))
