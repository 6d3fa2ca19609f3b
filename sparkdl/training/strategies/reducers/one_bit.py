"""1-bit SGD: signs and two numbers per column, with error feedback.

F. Seide, H. Fu, J. Droppo, G. Li and D. Yu, 1-bit stochastic gradient descent and its application to data-parallel
distributed training of speech DNNs, Interspeech 2014.

A column holds the weights of one output unit: a row of ``gradient.flatten(1)``, since the paper's layers multiply by
the transposed matrix. Of a column ``a`` travel its signs and the means of both classes, ``high`` and ``low``:

    q        = [a >= 0]
    high     = mean of a where q = 1,       low = mean of a where q = 0      (0 for an empty class)
    Q^-1(q)  = low + q (high - low)

Columns are dealt into ``N`` stripes of about equal size, and worker ``j`` owns stripe ``j``. For each step:

    worker i:  a_i = g_i + e_i;             sends Q(a_i) of stripe j to owner j;     e_i = a_i - Q^-1(Q(a_i))
    owner j:   b_j = sum_i Q^-1(Q(a_i)) + r_j;       sends Q(b_j) to all;            r_j = b_j - Q^-1(Q(b_j))
    worker i:  g   = Q^-1(Q(b_j)) of all stripes

``e`` and ``r`` are the residuals. Parameters of less than two dimensions are few, and travel uncompressed.

torch keeps no such hook; its ``quantization_hooks`` send eight bits without error feedback, and fail on gloo.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparkdl.cluster.group.world import Group
from sparkdl.errors import InvalidInput
from sparkdl.training.strategies.buckets import Bucket
from sparkdl.training.strategies.reducers import PendingReduce
from sparkdl.training.strategies.reducers.exact import ring_bytes
from sparkdl.training.strategies.reducers.pending import Finished, OneExchange, TwoExchanges
from sparkdl.training.strategies.reducers.residuals import check_real, drop_nonfinite_, load_tensors, zero_residual

_BLOCK = {"cpu": 1 << 16, "cuda": 1 << 24}  # elements that are coded at once: on a CPU they stay in its cache


@dataclass(frozen=True)
class OneBit:
    """Gradients travel as signs, with two numbers for each output unit of a layer.

    A worker keeps a residual of the gradients' size, and one of its stripe's size.

    Attributes:
        warmup: number of first steps that are uncompressed. Early gradients are large and change fast; the paper starts
            with uncompressed steps too.
    """

    warmup: int = 100

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise InvalidInput(f"warmup is {self.warmup}; expected at least 0 steps.")

    def open(self, buckets: Sequence[Bucket], group: Group) -> OneBitReduction:
        """Open the reducer."""
        check_real(self, buckets)
        return OneBitReduction(self, buckets, group)


class OneBitReduction:
    """Signs go to the owners of the stripes, and the signs of the sums to all workers."""

    def __init__(self, reducer: OneBit, buckets: Sequence[Bucket], group: Group) -> None:
        self._reducer, self._group = reducer, group
        self._striped = {bucket.index: _Striped(bucket, group) for bucket in buckets}
        self._started: deque[TwoExchanges] = deque()

    @property
    def bytes_per_step(self) -> int:
        """Bytes that this worker sends in the step that started last; before the first step, in the first."""
        warmup = self._reducer.warmup
        return sum(striped.bytes(warm=max(striped.steps, 1) <= warmup) for striped in self._striped.values())

    def start(self, bucket: Bucket) -> PendingReduce:
        """Quantise the gradients, and start to send each stripe to its owner."""
        if self._group.size == 1:
            return Finished()
        striped = self._striped[bucket.index]
        striped.steps += 1
        if striped.steps <= self._reducer.warmup:
            return OneExchange([self._group.sum_(bucket.buffer, wait=False)])
        striped.quantise()
        to_owners = self._group.all_to_all_into(striped.received, striped.sent, wait=False)
        uncompressed = self._group.sum_(striped.uncompressed, wait=False)

        def proceed() -> PendingReduce:
            to_owners.wait()
            striped.quantise_sum()
            to_all = self._group.all_gather_into(striped.received, striped.owned, wait=False)
            return OneExchange([uncompressed, to_all], striped.dequantise)

        return TwoExchanges(self._started, proceed)

    def state_dict(self) -> dict[str, Any]:
        """This worker's residuals, also that of its stripe, and the numbers of steps, by bucket."""
        return self._tensors() | {"steps": [striped.steps for striped in self._striped.values()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore this worker's residuals and the numbers of steps."""
        load_tensors(self._reducer, self._tensors(), state)
        for striped, steps in zip(self._striped.values(), state["steps"], strict=True):
            striped.steps = steps

    def _tensors(self) -> dict[str, Any]:
        return {
            "residuals": [striped.residual for striped in self._striped.values()],
            "stripe_residuals": [striped.stripe_residual for striped in self._striped.values()],
        }


@dataclass(frozen=True)
class _Piece:
    """Columns of one parameter in one stripe, as rows of these tensors: values [n, m], means and bits of messages."""

    gradient: Tensor
    residual: Tensor
    numbers: slice  # of the stripe's pairs (low, high - low)
    bits: slice  # of the stripe's bytes


class _Striped:
    """A bucket in stripes, with the messages of this worker.

    A message of a stripe has its columns' pairs ``(low, high - low)`` and the bits, eight in a byte.
    """

    def __init__(self, bucket: Bucket, group: Group) -> None:
        self._bucket, self._group = bucket, group
        self.steps = 0
        coded = [gradient.dim() > 1 and gradient.numel() > 0 for gradient in bucket.gradients]
        matrices = [one.flatten(1) for one, is_coded in zip(bucket.gradients, coded, strict=True) if is_coded]
        self._exact = [one.flatten() for one, is_coded in zip(bucket.gradients, coded, strict=True) if not is_coded]
        self._exact.append(bucket.used)
        self.uncompressed = torch.cat(self._exact)
        self.residual = zero_residual(bucket, sum(matrix.numel() for matrix in matrices))
        shares = [*_deal([matrix.shape for matrix in matrices], group.size)]
        self._pieces = [self._place(matrices, share) for share in shares]
        self._pairs = [sum(last - first for _, first, last in share) for share in shares]
        own = self._pieces[group.rank]
        self.stripe_residual = zero_residual(bucket, sum(piece.gradient.numel() for piece in own))
        number = self.residual.element_size()
        sizes = [2 * pairs * number + (pieces[-1].bits.stop if pieces else 0)
                 for pairs, pieces in zip(self._pairs, self._pieces, strict=True)]
        width = -(-max(sizes) // number) * number  # the numbers of every message are aligned
        device = bucket.buffer.device
        self.sent = torch.zeros(group.size, width, dtype=torch.uint8, device=device)
        self.received, self.owned = torch.zeros_like(self.sent), torch.zeros_like(self.sent[0])
        largest = max((matrix.shape[1] for matrix in matrices), default=0)
        self._code = _Code(self.residual, max(_BLOCK[device.type], 8 * largest))

    def _place(self, matrices: Sequence[Tensor], share: Sequence[tuple[int, int, int]]) -> list[_Piece]:
        starts = [0]
        for matrix in matrices:
            starts.append(starts[-1] + matrix.numel())
        pieces: list[_Piece] = []
        numbers = bits = 0
        for index, first, last in share:
            gradient = matrices[index][first:last]
            flat = self.residual[starts[index] : starts[index + 1]]
            ends = numbers + last - first, bits + -(-gradient.numel() // 8)
            residual = flat.view_as(matrices[index])[first:last]
            pieces.append(_Piece(gradient, residual, slice(numbers, ends[0]), slice(bits, ends[1])))
            numbers, bits = ends
        return pieces

    def bytes(self, *, warm: bool) -> int:
        """Bytes that this worker sends in an uncompressed or a compressed step."""
        workers = self._group.size
        if warm:
            return ring_bytes(self._bucket.buffer.nbytes, workers)
        return 2 * (workers - 1) * self.owned.nbytes + ring_bytes(self.uncompressed.nbytes, workers)

    def quantise(self) -> None:
        """Write the messages to the owners, and keep the residuals."""
        torch.cat(self._exact, out=self.uncompressed)
        for rank, pieces in enumerate(self._pieces):
            numbers, bits = self._parts(rank, self.sent[rank])
            for piece in pieces:
                piece.residual.add_(piece.gradient)
                self._code.quantise_(piece.residual, numbers[:, piece.numbers], bits[piece.bits])
                drop_nonfinite_(piece.residual, numbers[:, piece.numbers])

    def quantise_sum(self) -> None:
        """Sum the received messages of this worker's stripe in rank order, and write the message of the sum."""
        owner = self._group.rank
        to_all, to_all_bits = self._parts(owner, self.owned)
        messages = [self._parts(owner, message) for message in self.received]
        first = 0
        for piece in self._pieces[owner]:
            total = self.stripe_residual[first : first + piece.gradient.numel()].view_as(piece.gradient)
            for numbers, bits in messages:
                for rows, code in self._code.dequantise(total.shape, numbers[:, piece.numbers], bits[piece.bits]):
                    total[rows] += code
            self._code.quantise_(total, to_all[:, piece.numbers], to_all_bits[piece.bits])
            first += total.numel()
        drop_nonfinite_(self.stripe_residual, to_all)

    def dequantise(self) -> None:
        """Write the sums of all stripes into the bucket."""
        for rank, pieces in enumerate(self._pieces):
            numbers, bits = self._parts(rank, self.received[rank])
            for piece in pieces:
                for rows, code in self._code.dequantise(
                    piece.gradient.shape, numbers[:, piece.numbers], bits[piece.bits]
                ):
                    piece.gradient[rows] = code
        sizes = [len(exact) for exact in self._exact]
        for exact, total in zip(self._exact, self.uncompressed.split(sizes), strict=True):
            exact.copy_(total)

    def _parts(self, rank: int, message: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers [2, columns] and the bits of a message of stripe ``rank``."""
        end = 2 * self._pairs[rank] * self.residual.element_size()
        return message[:end].view(self.residual.dtype).view(2, -1), message[end:]


class _Code:
    """Q and its inverse, in blocks of whole columns."""

    def __init__(self, like: Tensor, elements: int) -> None:
        self._elements = elements
        self._signs, self._positive = like.new_empty(elements), like.new_empty(elements)
        self._bytes = like.new_empty(elements // 8, 1)
        exponents = torch.arange(8, device=like.device)
        self._powers = (2**exponents).to(like.dtype)[:, None]
        # Row b holds the bits of the byte b, the lowest first.
        self._table = (torch.arange(256, device=like.device)[:, None] >> exponents & 1).to(like.dtype)

    def quantise_(self, values: Tensor, numbers: Tensor, bits: Tensor) -> None:
        """Write the numbers and bits of ``values`` [n, m], of which the residual remains."""
        for rows, packed in self._blocks(values.shape, bits):
            a, (low, gap) = values[rows], numbers[:, rows]
            padded = self._signs[: 8 * len(packed)]
            padded[a.numel() :] = 0
            q = torch.ge(a, 0, out=padded[: a.numel()].view_as(a))
            count = q.sum(1)
            high = torch.clamp_min(a, 0, out=self._positive[: a.numel()].view_as(a)).sum(1)
            torch.sub(a.sum(1), high, out=low).div_((a.shape[1] - count).clamp_min_(1))
            torch.sub(high.div_(count.clamp_min_(1)), low, out=gap)
            # A sum of eight powers of two is exact, in every precision that a backend may use for products.
            packed.copy_(torch.mm(padded.view(-1, 8), self._powers, out=self._bytes[: len(packed)])[:, 0])
            a.sub_(q.mul_(gap[:, None]).add_(low[:, None]))

    def dequantise(self, shape: torch.Size, numbers: Tensor, bits: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield the values of each block of rows, by the same operations as ``quantise_``; each overwrites the last."""
        for rows, packed in self._blocks(shape, bits):
            low, gap = numbers[:, rows]
            padded = self._signs[: 8 * len(packed)]
            torch.index_select(self._table, 0, packed.int(), out=padded.view(-1, 8))
            yield rows, padded[: len(low) * shape[1]].view(-1, shape[1]).mul_(gap[:, None]).add_(low[:, None])

    def _blocks(self, shape: torch.Size, bits: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Blocks of rows, and their bytes; all but the last have a multiple of eight rows."""
        rows, columns = shape
        step = max(self._elements // max(columns, 1) // 8 * 8, 8)
        for first in range(0, rows, step):
            last = min(first + step, rows)
            yield slice(first, last), bits[first * columns // 8 : -(-last * columns // 8)]


def _deal(shapes: Sequence[torch.Size], workers: int) -> Iterator[list[tuple[int, int, int]]]:
    """For each stripe its (matrix, first row, last row); stripes differ in size by about a row."""
    total = sum(rows * columns for rows, columns in shapes)
    bounds = [total * rank // workers for rank in range(workers + 1)]
    for low, high in zip(bounds, bounds[1:], strict=False):
        share, start = [], 0
        for index, (rows, columns) in enumerate(shapes):
            first, last = (min(max(-(-(bound - start) // max(columns, 1)), 0), rows) for bound in (low, high))
            if first < last:
                share.append((index, first, last))
            start += rows * columns
        yield share
