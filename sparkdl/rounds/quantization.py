"""Stochastic quantization of tensors to ``b`` bits, on evenly spaced levels between their extremes.

    step = (max h - min h) / (2^b - 1)        h = the values of one tensor, b = ``quantize_bits``
    q_i  = min h + step * (floor s_i + B_i)    s_i = (h_i - min h) / step,  B_i = 1 with probability s_i - floor s_i

Thus ``E q = h`` and ``|q_i - h_i| < step``: J. Konecny et al., Federated learning: strategies for improving
communication efficiency, 2016, section 3. Each tensor has its own levels, since the scales of layers differ by orders
of magnitude. A client sends ``b`` bits per number and the two extremes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def quantised(values: Tensor, bits: int, random: torch.Generator) -> Tensor:
    """A tensor's values after quantization, in its shape and dtype."""
    # Drawn in any case: whether equal values stay equal depends on the device's rounding, and the next tensor's numbers
    # must not.
    chance = torch.rand(values.shape, generator=random, dtype=values.dtype)
    low, levels = values.min(), (1 << bits) - 1
    step = (values.max() - low) / levels
    if not float(step):
        return values.clone()
    scaled = (values - low) / step
    floor = scaled.floor()
    up = chance < scaled - floor
    return low + (floor + up).clamp(max=levels) * step  # rounding may raise s of the maximum above ``levels``


def quantised_each(flat: Tensor, sizes: Sequence[int], bits: int, random: torch.Generator) -> Tensor:
    """Quantize concatenated tensors of these ``sizes``, ``[n]``, except those that would not shrink."""
    shrinks = [packed(size, flat.element_size(), bits) < size * flat.element_size() for size in sizes]
    pairs = zip(torch.split(flat, list(sizes)), shrinks, strict=True)
    return torch.cat([quantised(tensor, bits, random) if shrunk else tensor for tensor, shrunk in pairs])


def packed(count: int, size: int, bits: int | None) -> int:
    """Bytes that a client sends for ``count`` numbers of ``size`` bytes; ``bits`` is None without quantization."""
    return count * size if bits is None else min(count * size, -(-count * bits // 8) + 2 * size)
