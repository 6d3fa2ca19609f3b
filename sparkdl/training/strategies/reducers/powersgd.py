"""PowerSGD: low-rank gradients by one step of subspace iteration, with error feedback.

T. Vogels, S. P. Karimireddy and M. Jaggi, PowerSGD: Practical low-rank gradient compression for distributed
optimization, 2019, arXiv:1905.13727. For a parameter's gradient ``g_i`` [n, m] of worker ``i`` and its residual
``e_i``, with ``r`` the rank:

    M_i = g_i + e_i
    P   = orthonormal basis of sum_i M_i Q             [n, r]
    Q_i = M_i^T P                                      [m, r]
    e_i = M_i - P Q_i^T
    Q   = sum_i Q_i                                    start of the next step
    g   = P Q^T = sum_i P Q_i^T

Here ``e_i`` is the loss of the worker's own gradient, bounded for workers with different rows. torch's hook subtracts
the mean of all instead; the sum of the residuals, on which alone ``g`` depends, is the same.

A step without gradients leaves columns of zeros in ``Q``, from which no later step could recover. Random columns
replace these. QR decomposition yields an orthonormal ``P`` of any matrix, also of zeros.

torch's ``powerSGD_hook`` aborts on gloo if two buckets are on their way: its callbacks start exchanges in another order
on each worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sparkdl.cluster.group.world import Group
from sparkdl.io.fields import CheckedFields, Count, Natural, Positive, Seed
from sparkdl.training.cost.traffic import Hosts, Traffic, all_reduce
from sparkdl.training.strategies.buckets import Bucket, views
from sparkdl.training.strategies.reducers.residuals import check_real, drop_nonfinite_, residual_dtype, zero_residual
from sparkdl.training.strategies.reducers.two_phases import TwoPhaseReduction, TwoPhases


@dataclass(frozen=True)
class PowerSGD(CheckedFields):
    """Each gradient travels as a product of two narrow matrices.

    Vectors, and matrices that would not shrink enough, travel uncompressed. A worker keeps a residual of the compressed
    gradients. Each worker decomposes ``P`` and multiplies itself: give all workers the same processor and the same
    number of threads, or their weights differ by rounding.

    Attributes:
        rank: number of columns of both matrices; 1 to 4 is usual, more for language models.
        warmup: number of first steps that are uncompressed; a tenth of all steps is usual. In blocks, as of
            ``LocalSGD(reduce=...)``, it counts exchanges.
        min_compression_rate: a gradient [n, m] is compressed if ``(n + m) * rank * min_compression_rate < n * m``.
        seed: of the first ``Q``.
    """

    rank: Count = 4
    warmup: Natural = 100
    min_compression_rate: Positive = 2.0
    seed: Seed = 0

    def open(self, buckets: Sequence[Bucket], group: Group) -> TwoPhaseReduction:
        """Open the reducer."""
        check_real(self, buckets)
        generator = torch.Generator().manual_seed(self.seed)
        phases = [_LowRank(bucket, self, generator) for bucket in buckets]
        return TwoPhaseReduction(self, buckets, group, _LowRank, phases)

    def traffic(self, bucket: Bucket, hosts: Hosts) -> Sequence[Traffic]:
        """After the warm-up: ring all-reduces of all P with the uncompressed gradients, and of all Q."""
        matrices, exact = self.split(bucket)
        if not matrices:
            return [all_reduce(bucket.buffer.nbytes, hosts)]
        number = residual_dtype(bucket).itemsize
        first = sum(len(matrix) * rank for matrix, rank in matrices) + sum(map(len, exact))
        second = sum(matrix.shape[1] * rank for matrix, rank in matrices)
        return [all_reduce(number * first, hosts), all_reduce(number * second, hosts)]

    def split(self, bucket: Bucket) -> tuple[list[tuple[Tensor, int]], list[Tensor]]:
        """The gradients to compress, as matrices with their ranks; the others with the counts of workers, flat."""
        matrices, exact = [], []
        for gradient in bucket.gradients:
            matrix = gradient.flatten(1) if gradient.dim() > 1 else gradient.reshape(1, -1)
            rank = min(*matrix.shape, self.rank)
            if sum(matrix.shape) * rank * self.min_compression_rate < matrix.numel() and gradient.dim() > 1:
                matrices.append((matrix, rank))
            else:
                exact.append(gradient.flatten())
        return matrices, [*exact, bucket.used]


@dataclass
class _Factors:
    """A compressed parameter; M is its residual, to which its gradient is added. Q is stored transposed."""

    gradient: Tensor  # [n, m]
    M: Tensor  # [n, m]
    P: Tensor  # [n, r]
    Q: Tensor  # [r, m]
    random: Tensor  # [r, m]


class _LowRank(TwoPhases):
    """A bucket as low-rank matrices, and buffers of both exchanges.

    ``first`` holds all P, then the uncompressed gradients and the counts of workers; ``second`` holds all Q.
    """

    saved: ClassVar = {"residuals": "residual", "Q": "second"}

    def __init__(self, bucket: Bucket, reducer: PowerSGD, generator: torch.Generator) -> None:
        matrices, exact = reducer.split(bucket)
        super().__init__(reducer.warmup, exact)
        sizes, others = [(len(one), one.shape[1], rank) for one, rank in matrices], sum(map(len, exact))
        like = self.residual = zero_residual(bucket, sum(n * m for n, m, _ in sizes))
        self.first = like.new_zeros(sum(n * r for n, _, r in sizes) + others)
        self.second = like.new_zeros(sum(r * m for _, m, r in sizes))
        self._own_factors = torch.empty_like(self.second)
        residuals = views(self.residual, [(n, m) for n, m, _ in sizes])
        *left, self.uncompressed = views(self.first, [*((n, r) for n, _, r in sizes), (others,)])
        right = views(self.second, [(r, m) for _, m, r in sizes])
        self._factors: list[_Factors] = []
        for (matrix, _), m, p, q in zip(matrices, residuals, left, right, strict=True):
            random = torch.randn(q.shape, generator=generator, dtype=like.dtype).to(like.device)
            self._factors.append(_Factors(matrix, m, p, q, random))

    def begin(self, group: Group) -> Any:
        """Add the gradients to the residuals, and start to sum all P and the uncompressed gradients."""
        for one in self._factors:
            one.M.add_(one.gradient)
            norms = torch.linalg.vector_norm(one.Q, dim=1, keepdim=True)
            start = torch.where((norms > 0) & norms.isfinite(), one.Q, one.random)
            torch.mm(one.M, start.t(), out=one.P)
        torch.cat(self.exact, out=self.uncompressed)
        return group.sum_(self.first, wait=False)

    def proceed(self, group: Group) -> Sequence[Any]:
        """Start to sum all Q; while they travel, keep the residuals M - P Q^T with this worker's Q."""
        for one in self._factors:
            one.P.copy_(torch.linalg.qr(one.P).Q)
            torch.mm(one.P.t(), one.M, out=one.Q)
        self._own_factors.copy_(self.second)
        pending = group.sum_(self.second, wait=False)
        own_factors = views(self._own_factors, [one.Q.shape for one in self._factors])
        for one, factor in zip(self._factors, own_factors, strict=True):
            one.M.addmm_(one.P, factor, alpha=-1)
        drop_nonfinite_(self.residual, self._own_factors)
        return [pending]

    def finish(self) -> None:
        for one in self._factors:
            if one.gradient.dtype == one.P.dtype:
                torch.mm(one.P, one.Q, out=one.gradient)
            else:
                one.gradient.copy_(one.P @ one.Q)
        super().finish()
