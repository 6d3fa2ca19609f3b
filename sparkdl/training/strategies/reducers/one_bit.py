"""1-bit SGD: signs and two numbers per column, with error feedback.

F. Seide, H. Fu, J. Droppo, G. Li and D. Yu, 1-bit stochastic gradient descent and its application to data-parallel
distributed training of speech DNNs, Interspeech 2014.

A column holds the weights of one output unit: a row of ``gradient.flatten(1)``, since the paper's layers multiply by
the transposed matrix. Of a column ``a`` travel its signs and the means of both classes, ``high`` and ``low``:

    q        = [a >= 0]
    high     = mean of a where q = 1,       low = mean of a where q = 0      (0 for an empty class)
    Q^-1(q)  = low + q (high - low)

Columns are dealt into ``N`` stripes of about equal size, and worker ``j`` owns stripe ``j``. For each step:

    worker i:  a_i = g_i + e_i;     sends Q(a_i) of stripe j to owner j != i;        e_i = a_i - Q^-1(Q(a_i))
    owner j:   b_j = g_j + sum_i Q^-1(Q(a_i)) + r_j, i != j;   sends Q(b_j) to all;  r_j = b_j - Q^-1(Q(b_j))
    worker i:  g   = Q^-1(Q(b_j)) of all stripes

The paper's owner quantises its own stripe too. Here it adds ``g_j``, which does not travel: that is faster, and exact.
``e`` and ``r`` are the residuals. Parameters of less than two dimensions are few, and travel uncompressed.

torch keeps no such hook; its ``quantization_hooks`` send eight bits without error feedback, and fail on gloo.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from sparkdl.cluster.group.world import Group
from sparkdl.io.fields import CheckedFields, Natural
from sparkdl.training.cost.traffic import Hosts, Traffic, all_gather, all_reduce, all_to_all, at_once
from sparkdl.training.strategies.buckets import Bucket, views
from sparkdl.training.strategies.reducers.residuals import check_real, drop_nonfinite_, residual_dtype, zero_residual
from sparkdl.training.strategies.reducers.two_phases import TwoPhaseReduction, TwoPhases

# The product moves bit 8 i of a number, the lowest of its byte i, to bit 56 + i: no other bits meet there.
_GATHER = sum(1 << 56 - 7 * i for i in range(8))
# Elements that are coded at once: on a CPU they stay in its cache.
_CPU_BLOCK, _GPU_BLOCK = 1 << 16, 1 << 24


@dataclass(frozen=True)
class OneBit(CheckedFields):
    """Gradients travel as signs, with two numbers for each output unit of a layer.

    A worker keeps a residual of the gradients' size, and one of its stripe's size.

    Attributes:
        warmup: number of first steps that are uncompressed; in blocks, as of ``LocalSGD(reduce=...)``, it counts
            exchanges. Early gradients are large and change fast; the paper starts with uncompressed steps too.
    """

    warmup: Natural = 100

    def open(self, buckets: Sequence[Bucket], group: Group) -> TwoPhaseReduction:
        """Open the reducer."""
        check_real(self, buckets)
        phases = [_Striped(bucket, group, self.warmup) for bucket in buckets]
        return TwoPhaseReduction(self, buckets, group, _Striped, phases)

    def traffic(self, bucket: Bucket, hosts: Hosts) -> Sequence[Traffic]:
        """After the warm-up: messages to the owners and from them, and the uncompressed gradients."""
        matrices, exact = _coded(bucket)
        if not matrices:
            return [all_reduce(bucket.buffer.nbytes, hosts)]
        elements = sum(matrix.numel() for matrix in matrices)
        residual = torch.empty(elements, dtype=residual_dtype(bucket), device="meta")
        width = _width([*_deal(matrices, residual, len(hosts))], residual)
        uncompressed = all_reduce(sum(map(len, exact)) * bucket.buffer.element_size(), hosts)
        return [at_once([all_to_all(len(hosts) * width, hosts), uncompressed]), all_gather(width, hosts)]


@dataclass(frozen=True)
class _Block:
    """Some columns of a parameter, ``n`` of ``m`` elements, and their place in the messages of their stripe."""

    gradient: Tensor  # [n, m]
    residual: Tensor  # [n, m]
    pairs: slice  # of the stripe's low and gap
    bits: slice  # bytes


@dataclass(frozen=True)
class _Code:
    low: Tensor  # [n, 1]
    gap: Tensor  # [n, 1], high - low
    bits: Tensor  # [ceil(n m / 8)]


class _Stripe:
    """The blocks of a stripe. A message has the ``low`` of its columns, their ``gap`` and the bits, eight in a byte."""

    def __init__(self, blocks: Sequence[_Block], residual: Tensor) -> None:
        self.blocks, self.residual = blocks, residual  # all elements of the stripe
        self._pairs: int = blocks[-1].pairs.stop if blocks else 0
        self._numbers = 2 * self._pairs * residual.element_size()  # bytes
        self.bytes: int = self._numbers + (blocks[-1].bits.stop if blocks else 0)

    def pairs(self, message: Tensor) -> Tensor:
        return message[: self._numbers].view(self.residual.dtype).view(2, self._pairs)

    def codes(self, message: Tensor) -> list[_Code]:
        if not self.blocks:
            return []
        low, gap = self.pairs(message)[:, :, None]
        bits = message[self._numbers :]
        return [_Code(low[block.pairs], gap[block.pairs], bits[block.bits]) for block in self.blocks]


class _Striped(TwoPhases):
    """Signs go to the owners of the stripes, and the signs of the sums to all workers."""

    saved: ClassVar = {"residuals": "residual", "stripe_residuals": "stripe_residual"}

    def __init__(self, bucket: Bucket, group: Group, warmup: int) -> None:
        matrices, exact = _coded(bucket)
        super().__init__(warmup, exact)
        self._group = group
        self.uncompressed = torch.cat(exact)
        self.residual = zero_residual(bucket, sum(matrix.numel() for matrix in matrices))
        self._stripes = [*_deal(matrices, self.residual, group.size)]
        own_stripe = self._stripes[group.rank]
        self.stripe_residual = torch.zeros_like(own_stripe.residual)
        self._totals = views(self.stripe_residual, [block.gradient.shape for block in own_stripe.blocks])
        width = _width(self._stripes, self.residual)
        self.sent = torch.zeros(group.size, width, dtype=torch.uint8, device=self.residual.device)
        self.received, self.owned = torch.zeros_like(self.sent), torch.zeros_like(self.sent[0])
        self._to_owners = [stripe.codes(message) for stripe, message in zip(self._stripes, self.sent, strict=True)]
        self._to_owner = [own_stripe.codes(message) for message in self.received]
        self._to_all = own_stripe.codes(self.owned)
        self._sums = [stripe.codes(message) for stripe, message in zip(self._stripes, self.received, strict=True)]
        self._coder = _Coder(self.residual)

    def begin(self, group: Group) -> Any:
        """Quantise the gradients, and start to send each stripe to its owner."""
        torch.cat(self.exact, out=self.uncompressed)
        for rank, (stripe, message) in enumerate(zip(self._stripes, self.sent, strict=True)):
            if rank == self._group.rank:
                continue
            for block, code in zip(stripe.blocks, self._to_owners[rank], strict=True):
                self._coder.quantise_(block.residual.add_(block.gradient), code)
            drop_nonfinite_(stripe.residual, stripe.pairs(message))
        to_owners = group.all_to_all_into(self.received, self.sent, wait=False)
        self._pending = group.sum_(self.uncompressed, wait=False)
        return to_owners

    def proceed(self, group: Group) -> Sequence[Any]:
        """Quantise the sum of this worker's stripe, and start to send it to all."""
        rank = self._group.rank
        blocks, others = self._stripes[rank].blocks, self._to_owner[:rank] + self._to_owner[rank + 1 :]
        for block, total, to_all, *codes in zip(blocks, self._totals, self._to_all, *others, strict=True):
            total.add_(block.gradient)
            for code in codes:
                total.add_(self._coder.dequantise(code, total.shape))
            self._coder.quantise_(total, to_all, out=block.gradient)
        drop_nonfinite_(self.stripe_residual, self._stripes[rank].pairs(self.owned))
        return [self._pending, group.all_gather_into(self.received, self.owned, wait=False)]

    def finish(self) -> None:
        for rank, (stripe, codes) in enumerate(zip(self._stripes, self._sums, strict=True)):
            for block, code in zip(stripe.blocks, codes, strict=True) if rank != self._group.rank else ():
                self._coder.dequantise(code, block.gradient.shape, out=block.gradient)
        super().finish()


class _Coder:
    def __init__(self, like: Tensor) -> None:
        self._like = like
        # Eight bytes of zeros and ones for each byte, the lowest bit first, as one number.
        bits = torch.arange(256)[:, None] >> torch.arange(8) & 1
        self._table = bits.byte().view(torch.int64)[:, 0].to(like.device)
        self._spaces: dict[torch.Size, _Space] = {}

    def _space(self, shape: torch.Size) -> _Space:
        if shape not in self._spaces:
            self._spaces[shape] = _Space(self._like, shape)
        return self._spaces[shape]

    def quantise_(self, a: Tensor, code: _Code, out: Tensor | None = None) -> Tensor:
        space = self._space(a.shape)
        high = torch.clamp_min(a, 0, out=space.q).sum(1, keepdim=True)
        torch.sum(a, 1, keepdim=True, out=code.low).sub_(high)
        ones = torch.ge(a, 0, out=space.q).sum(1, keepdim=True)
        code.low.div_((a.shape[1] - ones).clamp_min_(1))
        torch.sub(high.div_(ones.clamp_min_(1)), code.low, out=code.gap)
        space.bools.copy_(space.eights)
        code.bits.copy_(torch.mul(space.bools.view(torch.int64), _GATHER, out=space.packed).bitwise_right_shift_(56))
        decoded = self._values(space, code, out)
        a.sub_(decoded)
        return decoded

    def dequantise(self, code: _Code, shape: torch.Size, out: Tensor | None = None) -> Tensor:
        space = self._space(shape)
        space.index.copy_(code.bits)
        torch.index_select(self._table, 0, space.index, out=space.packed)
        space.eights.copy_(space.packed.view(torch.uint8))
        return self._values(space, code, out)

    def _values(self, space: _Space, code: _Code, out: Tensor | None) -> Tensor:
        scaled = space.q.mul_(code.gap)
        return torch.add(scaled, code.low, out=scaled if out is None else out)


class _Space:
    def __init__(self, like: Tensor, shape: torch.Size) -> None:
        elements = shape.numel()
        count = -(-elements // 8)
        self.eights = like.new_zeros(8 * count)  # q, and zeros up to a multiple of eight
        self.q = self.eights[:elements].view(shape)
        self.bools = like.new_empty(8 * count, dtype=torch.bool)
        self.packed = like.new_empty(count, dtype=torch.int64)
        self.index = like.new_empty(count, dtype=torch.int32)


def _coded(bucket: Bucket) -> tuple[list[Tensor], list[Tensor]]:
    coded = [gradient.dim() > 1 and gradient.numel() > 0 for gradient in bucket.gradients]
    matrices = [one.flatten(1) for one, is_coded in zip(bucket.gradients, coded, strict=True) if is_coded]
    exact = [one.flatten() for one, is_coded in zip(bucket.gradients, coded, strict=True) if not is_coded]
    return matrices, [*exact, bucket.used]


def _width(stripes: Sequence[_Stripe], residual: Tensor) -> int:
    number = residual.element_size()
    return -(-max(stripe.bytes for stripe in stripes) // number) * number


def _deal(matrices: Sequence[Tensor], residual: Tensor, workers: int) -> Iterator[_Stripe]:
    limit = _GPU_BLOCK if residual.is_cuda else _CPU_BLOCK
    bounds = [len(residual) * rank // workers for rank in range(workers + 1)]
    end = 0
    for low, high in pairwise(bounds):
        blocks: list[_Block] = []
        start, begin = 0, end
        for matrix in matrices:
            columns, elements = matrix.shape
            first, last = (min(max(-(-(bound - start) // elements), 0), columns) for bound in (low, high))
            remembered = residual[start : start + matrix.numel()].view(columns, elements)
            step = max(limit // elements, 1)
            for at in range(first, last, step):
                part = slice(at, min(at + step, last))
                blocks.append(_block(matrix[part], remembered[part], blocks))
                end += blocks[-1].gradient.numel()
            start += matrix.numel()
        yield _Stripe(blocks, residual[begin:end])


def _block(gradient: Tensor, residual: Tensor, before: Sequence[_Block]) -> _Block:
    pairs, bits = (before[-1].pairs.stop, before[-1].bits.stop) if before else (0, 0)
    return _Block(
        gradient, residual, slice(pairs, pairs + len(gradient)), slice(bits, bits + -(-gradient.numel() // 8))
    )
