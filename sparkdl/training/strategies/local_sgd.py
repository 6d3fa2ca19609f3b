"""Local SGD: workers take several steps each, then exchange the mean of their changes.

    w_i   = the weights of worker i after ``every`` local steps of its own optimizer from the common weights w
    d     = sum_i p_i (w - w_i),  sum_i p_i = 1
    v'    = beta v + d                                      beta = ``momentum``, eta = ``lr``
    w'    = w - eta v',  or  w - eta (d + beta v')          the latter with ``nesterov``

p_i is worker i's share of the rows of the block, or of the sum of their denominators. A worker without rows has
p_i = 0. With one step a block, eta = 1 and SGD as the optimizer, w' equals the weights of ``AllReduce``.
torch's ``PeriodicModelAverager`` counts all workers the same and has no outer momentum.

The settings give the algorithms of

* S. Stich, Local SGD converges fast and communicates little, ICLR 2019: eta = 1, beta = 0;
* T. Lin et al., Don't use large mini-batches, use local SGD, ICLR 2020 (post-local SGD): the same, with ``warmup``;
* K. Chen and Q. Huo, Scalable training of deep learning machines by incremental block training with intra-block
  parallel optimization and blockwise model-update filtering, ICASSP 2016 (block momentum, BMUF): eta = zeta,
  beta = 1 - 1 / N;
* J. Wang et al., SlowMo: improving communication-efficient distributed SGD with slow momentum, ICLR 2020: eta = alpha;
* A. Douillard et al., DiLoCo: distributed low-communication training of language models, 2023, arXiv:2311.08105: AdamW
  as the optimizer, eta = 0.7, beta = 0.9 with Nesterov's momentum.

Chen and Huo's model is W(t). With Nesterov's momentum, their workers start from W(t) + beta D(t), D(t) = -eta v. Here
w is that start. SlowMo divides v by the inner learning rate: with a constant one, the weights are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparkdl.cluster.group.world import Group
from sparkdl.data.batch import Batch
from sparkdl.data.clock import Clock
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import BelowOne, Count, Natural, Positive, checked
from sparkdl.training.layouts import Replica
from sparkdl.training.strategies import average_buffers
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.blocks import LocalSteps
from sparkdl.training.strategies.bucketed import BUCKET_BYTES, BlockStrategy
from sparkdl.training.strategies.outer_update import outer_update
from sparkdl.training.strategies.reducers import Reducer


@dataclass(frozen=True)
class LocalSGD(BlockStrategy):
    """Workers train alone for ``every`` steps, then take one outer step on the mean of their changes.

    Each epoch's end ends the block, so that validation, the result and checkpoints have equal replicas. Optimizer,
    scheduler, ``maxGradNorm`` and the scale of fp16 are each worker's own; the optimizer's state is never averaged.
    A worker holds two more copies of the weights, and one more for each of ``momentum`` and ``warmup``. On one worker
    ``reset_inner`` and ``reduce`` have no effect.

    Attributes:
        every: steps of a block.
        lr: outer learning rate; 1 for averaging.
        momentum: outer momentum, from 0 to below 1; 0 for none.
        nesterov: whether the outer momentum is Nesterov's.
        warmup: steps of the run that reduce gradients as ``AllReduce`` does, before the first block.
        average_buffers: whether floating-point buffers are averaged at each block's end, not only at each epoch's.
        reset_inner: whether each block starts with a new state of the optimizer, such as its momentum.
        reduce: how a bucket of the changes is summed; None for ``Exact()``.
        bucket_bytes: bytes of a bucket.

    Raises:
        InvalidInput: a field is out of range.
    """

    every: Count
    lr: Positive = 1.0
    momentum: BelowOne = 0.0
    nesterov: bool = False
    warmup: Natural = 0
    average_buffers: bool = True
    reset_inner: bool = False
    reduce: Reducer | None = None
    bucket_bytes: Count = BUCKET_BYTES

    def _check(self) -> None:
        if self.nesterov and not self.momentum:
            raise InvalidInput("LocalSGD.nesterov is True; expected False without momentum.")

    @classmethod
    def block_momentum(cls, workers: int, *, every: int = 50, nesterov: bool = True, **settings: Any) -> LocalSGD:
        """Blockwise model-update filtering (BMUF) of K. Chen and Q. Huo, ICASSP 2016, as CNTK's ``BlockMomentumSGD``.

        Args:
            workers: number of workers N; the momentum is 1 - 1 / N, and the learning rate zeta is 1.
            every: steps of a block; CNTK counts rows instead.
            nesterov: whether the block momentum is Nesterov's, as by CNTK's default; no effect without momentum.
            settings: other fields of ``LocalSGD``; as in CNTK, ``reset_inner`` is True by default.

        Raises:
            InvalidInput: ``workers`` is below 1, or a field is out of range.
        """
        fields = {"momentum": 1 - 1 / checked(workers, Count, "workers"), "reset_inner": True} | settings
        return cls(every, nesterov=nesterov and fields["momentum"] > 0, **fields)

    @classmethod
    def diloco(cls, every: int = 500, lr: float = 0.7, momentum: float = 0.9, **settings: Any) -> LocalSGD:
        """DiLoCo of A. Douillard et al., 2023, arXiv:2311.08105; the optimizer is to be ``torch.optim.AdamW``.

        Args:
            every: steps of a block.
            lr: outer learning rate.
            momentum: outer momentum, which is Nesterov's.
            settings: other fields of ``LocalSGD``.
        """
        return cls(every, lr, momentum, **({"nesterov": True} | settings))

    @classmethod
    def slowmo(cls, every: int = 48, momentum: float = 0.5, lr: float = 1.0, **settings: Any) -> LocalSGD:
        """Slow momentum of J. Wang et al., ICLR 2020, arXiv:1910.00643.

        The paper divides the velocity by the inner learning rate, and this one does not. In the paper, older changes
        so count as if they had the present rate.

        Args:
            every: steps of a block, tau in the paper.
            momentum: slow momentum, beta in the paper; it had 0.4 to 0.8.
            lr: slow learning rate, alpha in the paper.
            settings: other fields of ``LocalSGD``.
        """
        return cls(every, lr, momentum, **settings)

    def attach(self, replica: Replica, group: Group) -> LocalSGDSync:
        """Attach to the replica."""
        return LocalSGDSync(self, replica, group)


class LocalSGDSync(LocalSteps):
    """Local SGD attached to one replica."""

    def __init__(self, strategy: LocalSGD, replica: Replica, group: Group) -> None:
        super().__init__(strategy, replica, group)
        self._strategy = strategy
        warmup = AllReduce(bucket_bytes=strategy.bucket_bytes)
        self._warmup = warmup.attach(replica, group) if strategy.warmup else None
        self._warmed = 0  # finished steps of the warm-up
        self._weight, self._total = 0.0, 0.0  # of this worker's rows in the block, and of all
        self._velocity: dict[int, Tensor] = {}  # by parameter; empty without momentum, and before the first exchange
        self._start = [parameter.detach().clone() for parameter in replica.parameters]  # w

    @property
    def bytes_per_step(self) -> int:
        """Bytes that this worker sends per step on average, if blocks have ``every`` steps; buffers excluded."""
        return super().bytes_per_step if self._warmup is None else self._warmup.bytes_per_step

    def start_epoch(self) -> None:
        """Nothing to prepare, since the replica continues from the common weights."""
        # The warm-up's last epoch may have too few steps for a block.
        self._block.warn = self.group.rank == 0 and self._warmup is None

    def update(self, clock: Clock, batch: Batch) -> None:
        """Take a local step, in the warm-up a common one; exchange if the block ends."""
        if self._warmup is not None:
            self._warmup.update(clock, batch)
            self._warmed += 1
            self._end_warmup()
            return
        self._weight, self._total = self._weight + batch.weight, self._total + batch.step_weight
        super().update(clock, batch)

    def detach(self) -> None:
        """End the block; all replicas are then equal."""
        self._equalise()
        self.replica.sink = None

    def state_dict(self) -> dict[str, Any]:
        """Progress in warm-up and block, the weights at the block's start, the velocity, and the reduction's state."""
        start = dict(enumerate(self._start)) if self._block.steps else {}
        shared = {"warmed": self._warmed, "block": self._block.state_dict(), "start": start}
        shared |= {"velocity": self._velocity, "total": self._total}
        return {"shared": shared, "weight": self._weight, "reduction": self._reduction.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state, for a replica that has its weights already."""
        shared = state["shared"]
        self._warmed = shared["warmed"]
        self._block.load_state_dict(shared["block"])
        self._end_warmup()
        self._begin()
        for index, parameter in enumerate(self.replica.parameters):
            if index in shared["start"]:
                self._start[index].copy_(shared["start"][index])
            if index in shared["velocity"]:
                self._velocity[index] = shared["velocity"][index].to(parameter.device)
        self._weight, self._total = state.get("weight", 0.0), shared["total"]
        if "reduction" in state:
            self._reduction.load_state_dict(state["reduction"])

    def _equalise(self) -> None:
        """End the block."""
        if self._block.end_epoch():
            self._exchange()

    def _end_warmup(self) -> None:
        if self._warmup is not None and self._warmed >= self._strategy.warmup:
            self._warmup.detach()
            self._warmup = None
            self._begin()

    @torch.no_grad()
    def _begin(self) -> None:
        for start, parameter in zip(self._start, self.replica.parameters, strict=True):
            start.copy_(parameter)

    def _exchange(self) -> None:
        strategy = self._strategy
        total, share = self._total, self._weight / self._total if self._total else 0.0
        # One worker's mean is its own weights, which must not round. Without rows, nobody has moved.
        if total and (self.group.size > 1 or strategy.lr != 1 or strategy.momentum):
            self._step(share)
            if strategy.average_buffers:
                average_buffers(self.replica.module, self.replica.workers.data, share)
        if strategy.reset_inner and self.group.size > 1:
            self.replica.optimizer.state.clear()
        self._weight, self._total = 0.0, 0.0

    @torch.no_grad()
    def _step(self, share: float) -> None:
        strategy, parameters = self._strategy, self.replica.parameters
        for delta, start, parameter in zip(self._terms, self._start, parameters, strict=True):
            torch.sub(start, parameter, out=delta).mul_(share)
        self._sum()
        settings: dict[str, Any] = {"lr": strategy.lr, "momentum": strategy.momentum, "nesterov": strategy.nesterov}
        for index, (delta, start, parameter) in enumerate(zip(self._terms, self._start, parameters, strict=True)):
            w, velocity = outer_update(start, delta, self._velocity.get(index, 0.0), **settings)
            start.copy_(w)
            parameter.copy_(w)
            if strategy.momentum:
                self._velocity[index] = velocity
