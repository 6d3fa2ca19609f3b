"""Pushes of significant changes alone, as in Gaia.

Worker ``i`` keeps a residual ``r_i`` of each weight ``w``: a change that it has not pushed. Push ``t`` of the run has
the sum ``u`` of the worker's weighted gradients since push ``t - 1``, and the learning rate ``eta``:

    r_i <- r_i + eta u;    where |r_i| > v / sqrt(t) |w|, the worker pushes r_i / eta, and r_i <- 0.

With SGD, a push so changes the weight by ``r_i``. When workers settle, they push residuals whole. So after push ``t``
the shards lack a change of at most ``v / sqrt(t) |w|`` of each worker, for the ``w`` that it had. A pull at clock ``c``
has all significant changes up to clock ``c - s`` with ``staleness=s``. Gaia bounds clocks by messages of their own, its
mirror clock, and blocks reads until the changes of others arrive, its selective barrier. Here the wait of a pull does
both (K. Hsieh et al., Gaia: geo-distributed machine learning approaching LAN speeds, NSDI 2017).

A push names the places of its numbers, if that is shorter than all numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparkdl.io.fields import CheckedFields, Positive
from sparkdl.training.strategies.parameter_server.placement import Portion

_PLACE = torch.int32  # of a number in a shard's rows of one tensor


@dataclass(frozen=True)
class Significance(CheckedFields):
    """Pushes what would change a weight by more than a fraction of its size; the remainder stays on the worker.

    The change is the gradient times the learning rate, as with SGD. Pulls have all weights, so that the filter saves at
    most half of the bytes.

    Attributes:
        threshold: the fraction in the first push; push ``t`` has ``threshold / sqrt(t)``.

    Raises:
        InvalidInput: the threshold is no finite number above 0.
    """

    threshold: Positive = 0.01

    def at(self, push: int) -> float:
        """The fraction in push number ``push``, from 1."""
        return float(self.threshold / push**0.5)


class Residuals:
    """What one worker has not pushed, for all shards."""

    def __init__(self, portions: Sequence[Portion]) -> None:
        self.values = [portion.views(portion.allocate()) for portion in portions]

    @torch.no_grad()
    def filter(
        self,
        sums: Sequence[Sequence[Tensor]],
        weights: Sequence[Sequence[Tensor]],
        rates: Sequence[tuple[float, float]],
        fraction: float,
    ) -> None:
        """Add the sums of each shard's tensors to the residuals, and replace them by what is significant.

        Args:
            sums: of gradients, by shard and tensor.
            weights: their weights.
            rates: the learning rates of each tensor: of the sum, and of the push. If that is 0, nothing is pushed.
            fraction: of a weight's size; 0 lets all numbers pass.
        """
        for residuals, shard_sums, shard_weights in zip(self.values, sums, weights, strict=True):
            for residual, total, weight, (rate, push_rate) in zip(
                residuals, shard_sums, shard_weights, rates, strict=True
            ):
                residual.add_(total, alpha=rate)
                if not push_rate:
                    total.zero_()
                    continue
                small = residual.abs() <= fraction * weight.to(residual).abs() if fraction else residual == 0
                torch.div(residual, push_rate, out=total).masked_fill_(small, 0.0)
                residual.masked_fill_(~small, 0.0)  # also NaN


def pack(views: Sequence[Tensor]) -> tuple[list[int], Tensor] | None:
    """The numbers of the views that are not 0: how many of each view, and bytes; None if all numbers are shorter."""
    places = [view.view(-1).nonzero().view(-1) for view in views]
    counts = [*map(len, places)]
    size = packed_bytes(counts, views)
    if size >= sum(view.nbytes for view in views) or any(view.numel() > torch.iinfo(_PLACE).max for view in views):
        return None
    packed, end = torch.empty(size, dtype=torch.uint8), 0
    for view, chosen in zip(views, places, strict=True):
        for part in (chosen.to(_PLACE), view.view(-1)[chosen]):
            packed[end : end + part.nbytes] = part.view(torch.uint8)
            end += part.nbytes
    return counts, packed


def packed_bytes(counts: Collection[int], views: Sequence[Tensor]) -> int:
    """Bytes of so many numbers of each view, with their places."""
    return sum(count * (_PLACE.itemsize + view.itemsize) for count, view in zip(counts, views, strict=True))


def unpack(counts: Sequence[int], packed: Tensor, views: Sequence[Tensor]) -> None:
    """Set the views to the numbers of ``pack``; ``packed`` may be their own memory.

    Raises:
        IndexError: a place is outside of its view.
    """
    pairs = [*zip(counts, views, strict=True)]
    sizes = [count * size for count, view in pairs for size in (_PLACE.itemsize, view.itemsize)]
    parts = [part.clone() for part in torch.split(packed, sizes)]  # whose memory is aligned
    for view, places, numbers in zip(views, parts[::2], parts[1::2], strict=True):
        view.zero_()
        view.view(-1)[places.view(_PLACE).long()] = numbers.view(view.dtype)
