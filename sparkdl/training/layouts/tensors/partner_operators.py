"""Differentiable exchanges between partners, which compute one replica together on the same rows.

With ``x_i`` partner ``i``'s tensor and ``y'`` the gradient of ``y``:

    operator    forward                   backward
    copied      y = x                     x' = sum_i y'_i        x is equal on all partners
    summed      y = sum_i x_i             x'_i = y'
    cut         y_i = part i of x         x' = [y'_1, ..., y'_n]
    gathered    y = [x_1, ..., x_n]       x'_i = part i of y'

``copied`` and ``summed`` are the operators f and g of M. Shoeybi et al., Megatron-LM: training multi-billion parameter
language models using model parallelism, 2019, arXiv:1909.08053. All partners call the operators in the same order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparkdl.cluster.group.world import Group
from sparkdl.telemetry.step_timer import inner_phase
from sparkdl.training.layouts import SentBytes


class Partners:
    """The operators of one worker's partners.

    Args:
        group: the partners.

    Attributes:
        group: the partners.
        sent: bytes that this worker has sent.
    """

    def __init__(self, group: Group) -> None:
        self.group, self.sent = group, SentBytes()

    def copied(self, tensor: Tensor) -> Tensor:
        """The tensor, whose gradient is summed over the partners."""
        result: Tensor = _Copied.apply(tensor, self)  # type: ignore[no-untyped-call]
        return result

    def summed(self, tensor: Tensor) -> Tensor:
        """The sum over the partners."""
        result: Tensor = _Summed.apply(tensor, self)  # type: ignore[no-untyped-call]
        return result

    def cut(self, tensor: Tensor, dim: int) -> Tensor:
        """This worker's part of a tensor along a dimension."""
        result: Tensor = _Cut.apply(tensor, dim, self)  # type: ignore[no-untyped-call]
        return result

    def gathered(self, tensor: Tensor, dim: int) -> Tensor:
        """The parts of all partners along a dimension."""
        result: Tensor = _Gathered.apply(tensor, dim, self)  # type: ignore[no-untyped-call]
        return result

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the partners, without a gradient."""
        total = tensor.clone(memory_format=torch.contiguous_format)
        with inner_phase("exchange"):
            self.group.sum_(total)
        self.sent.count += 2 * (self.group.size - 1) * total.nbytes // self.group.size
        return total

    def gather(self, tensor: Tensor, dim: int) -> list[Tensor]:
        """The parts of all partners along a dimension, without a gradient; the parts may differ in size."""
        part = tensor.movedim(dim, 0).contiguous()
        with inner_phase("exchange"):
            parts = self.group.all_to_all_rows([part] * self.group.size)
        self.sent.count += (self.group.size - 1) * part.nbytes
        return [one.movedim(0, dim) for one in parts]

    def part(self, tensor: Tensor, dim: int) -> Tensor:
        """This worker's part of a tensor along a dimension, without a gradient."""
        return tensor.tensor_split(self.group.size, dim)[self.group.rank].contiguous()


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, partners: Partners) -> Tensor:
        ctx.partners = partners
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.partners.sum(gradients[0]), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, partners: Partners) -> Tensor:
        return partners.sum(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class _Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, partners: Partners) -> Tensor:
        ctx.dim, ctx.partners = dim, partners
        return partners.part(tensor, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return torch.cat(ctx.partners.gather(gradients[0], ctx.dim), ctx.dim), None, None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, partners: Partners) -> Tensor:
        ctx.dim, ctx.rank, parts = dim, partners.group.rank, partners.gather(tensor, dim)
        ctx.sizes = [part.shape[dim] for part in parts]
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return torch.split(gradients[0], ctx.sizes, ctx.dim)[ctx.rank].contiguous(), None, None
