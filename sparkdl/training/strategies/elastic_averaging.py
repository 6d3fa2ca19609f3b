"""Elastic averaging: workers keep their own weights, which a spring ties to a common center.

    d_i   = alpha (x_i - c)                      alpha = beta / N, after ``every`` local steps of each worker
    x_i'  = x_i - d_i
    c'    = c + sum_i d_i = (1 - beta) c + beta mean_i(x_i)

x_i are the weights of worker i, c is the center and N the number of workers. This is the synchronous form of EASGD;
with Nesterov's momentum in the optimizer, ``torch.optim.SGD(..., momentum=0.99, nesterov=True)``, it is EAMSGD: S.
Zhang, A. Choromanska and Y. LeCun, Deep learning with elastic averaging SGD, NIPS 2015. The paper recommends
beta = 0.9. The smaller beta, the further workers explore on their own.

All workers count the same, whatever their rows, as in the paper, where each one draws from all data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparkdl.cluster.group.world import Group
from sparkdl.io.fields import Count, Share
from sparkdl.training.layouts import Replica
from sparkdl.training.strategies.blocks import LocalSteps
from sparkdl.training.strategies.bucketed import BUCKET_BYTES, BlockStrategy
from sparkdl.training.strategies.reducers import Reducer


@dataclass(frozen=True)
class ElasticAveraging(BlockStrategy):
    """EASGD: workers train alone, and every few steps a spring pulls them and a common center together.

    Validation, early stopping, the best weights and the result take the center; training continues from each worker's
    own weights. Each epoch's end is an exchange as well. If a run resumes with another number of workers, all start
    from the center. Optimizer, scheduler and ``maxGradNorm`` are each worker's own. One worker trains without a spring.
    The center has no buffers: validation takes the mean of the workers' own, such as BatchNorm's statistics. A worker
    holds two more copies of the weights, and three during validation.

    Attributes:
        every: steps between two exchanges, tau in the paper.
        beta: strength of the spring, above 0 and at most 1. The center moves by this part of its distance to the
            workers' mean. A worker moves by alpha = beta / N of its distance to the center.
        reduce: how a bucket of differences is summed; None for ``Exact()``.
        bucket_bytes: bytes of a bucket.

    Raises:
        InvalidInput: a field is out of range.
    """

    every: Count = 10
    beta: Share = 0.9
    reduce: Reducer | None = None
    bucket_bytes: Count = BUCKET_BYTES

    def attach(self, replica: Replica, group: Group) -> ElasticAveragingSync:
        """Attach to the replica, whose weights are the first center."""
        return ElasticAveragingSync(self, replica, group)


class ElasticAveragingSync(LocalSteps):
    """Elastic averaging attached to one replica, whose module has the center between epochs."""

    def __init__(self, strategy: ElasticAveraging, replica: Replica, group: Group) -> None:
        super().__init__(strategy, replica, group)
        self._strategy = strategy
        self._worker_weights: dict[int, Tensor] = {}  # x_i by parameter, while the module has the center
        # On one worker the center is the replica.
        alone = group.size == 1
        self._center = [value.detach() if alone else value.detach().clone() for value in replica.parameters]

    def start_epoch(self) -> None:
        """Put this worker's own weights back into the module."""
        self._fill(self._worker_weights)
        self._worker_weights = {}

    def detach(self) -> None:
        """Leave the center in the module."""
        if not self._worker_weights:
            self._equalise()

    def state_dict(self) -> dict[str, Any]:
        """The block's progress and, unless the module has it, the center; this worker's weights if it has."""
        center = {} if self._worker_weights else dict(enumerate(self._center))
        shared = {"block": self._block.state_dict(), "center": center}
        return {"shared": shared, "own": self._worker_weights, "reduction": self._reduction.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state, for a replica that has its weights already."""
        shared = state["shared"]
        self._block.load_state_dict(shared["block"])
        for index, parameter in enumerate(self.replica.parameters):
            self._center[index].copy_(shared["center"].get(index, parameter))
        self._worker_weights = state.get("own", {})
        if "reduction" in state:
            self._reduction.load_state_dict(state["reduction"])

    def _equalise(self) -> None:
        """End the block, and put the center into the module."""
        if self._block.end_epoch():
            self._exchange()
        self._worker_weights = dict(enumerate(parameter.detach().clone() for parameter in self.replica.parameters))
        self._fill(dict(enumerate(self._center)))

    @torch.no_grad()
    def _exchange(self) -> None:
        if self.group.size == 1:
            return
        alpha = self._strategy.beta / self.group.size
        for term, x, center in zip(self._terms, self.replica.parameters, self._center, strict=True):
            torch.sub(x, center, out=term).mul_(alpha)
            x.sub_(term)
        self._sum()
        for term, center in zip(self._terms, self._center, strict=True):
            center.add_(term)
