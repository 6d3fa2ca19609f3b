"""Synchronous SGD: every worker applies the mean gradient of the global batch."""

from dataclasses import dataclass
from typing import Any

import torch

from sparkdl.cluster.group.world import Group
from sparkdl.data.batch import Batch
from sparkdl.data.clock import Clock
from sparkdl.training.layouts import Replica
from sparkdl.training.strategies import Strategy, Sync


@dataclass(frozen=True)
class MeanGradient(Strategy):  # hyperparameters would be its fields
    def attach(self, replica: Replica, group: Group) -> Sync:
        return MeanGradientSync(replica, group)  # the loop has given all replicas the weights of rank 0


class MeanGradientSync(Sync):
    replicated = True  # all replicas stay bit-identical, so that a checkpoint holds one copy

    def __init__(self, replica: Replica, group: Group) -> None:
        self.replica, self.group = replica, group

    @property
    def bytes_per_step(self) -> int:
        return sum(parameter.nbytes for parameter in self.replica.parameters)

    def update(self, clock: Clock, batch: Batch) -> None:
        for parameter in self.replica.parameters:
            used = torch.tensor(float(parameter.grad is not None), device=parameter.device)
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            gradient *= batch.weight_fraction  # 0 for a worker without rows, which takes part all the same
            self.group.sum_(gradient)
            self.group.sum_(used)
            parameter.grad = gradient if used else None  # as on one machine if no row used the parameter
        self.replica.apply()

    def detach(self) -> None:
        pass  # nothing listens to the replica

    def state_dict(self) -> dict[str, Any]:
        return {}  # a momentum or a residual would be saved here

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
