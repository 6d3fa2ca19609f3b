"""Few bits for a number: stochastic rounding to levels that are evenly spaced between the extremes.

    step = (max h - min h) / (2^b - 1)        h = the values of one tensor, b = ``bits``
    q_i  = min h + step * (floor s_i + B_i)    s_i = (h_i - min h) / step,  B_i = 1 with probability s_i - floor s_i

so that ``E q = h`` and ``|q_i - h_i| < step``: J. Konecny et al., Federated learning: strategies for improving
communication efficiency, 2016, section 3. Each tensor has levels of its own, as layers differ in scale by orders of
magnitude; what is sent of it is ``b`` bits a number and its extremes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def quantised(values: Tensor, bits: int, random: torch.Generator) -> Tensor:
    """One tensor's values as they arrive, in its shape and dtype."""
    low, levels = values.min(), (1 << bits) - 1
    step = (values.max() - low) / levels
    if not float(step):
        return values.clone()
    scaled = (values - low) / step
    floor = scaled.floor()
    up = torch.rand(values.shape, generator=random, dtype=values.dtype) < scaled - floor
    return low + (floor + up).clamp(max=levels) * step  # s of the maximum may be rounded up to more


def quantised_each(flat: Tensor, sizes: Sequence[int], bits: int, random: torch.Generator) -> Tensor:
    """Tensors one behind the other, each quantised; as it is where it would take no fewer bytes so."""
    size = flat.element_size()
    return torch.cat(
        [
            quantised(piece, bits, random) if packed(len(piece), size, bits) < len(piece) * size else piece
            for piece in torch.split(flat, list(sizes))
        ]
    )


def packed(count: int, size: int, bits: int | None) -> int:
    """Bytes that a tensor takes.

    Args:
        count: its numbers.
        size: bytes of one of them.
        bits: of a number that is sent; None for all of it.
    """
    return count * size if bits is None else min(count * size, -(-count * bits // 8) + 2 * size)
