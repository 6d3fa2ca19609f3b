"""The batch size of a model's inference, from a byte budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sparkdl.data.batch import Input
from sparkdl.data.validation import Array

BUDGET = 8 << 20  # bytes of the largest tensor: enough rows for a cheap call, few enough for the caches
GPU_BUDGET = 256 << 20  # for the kernels to fill a GPU
_PROBE = 8  # rows of the pass that measures bytes


class _Largest(TorchFunctionMode):
    bytes = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.bytes = max(self.bytes, result.numel() * result.element_size())
        return result


def batch_rows(
    forward: Callable[[slice], Any],
    inputs: Sequence[Input | Array],
    at_once: Callable[[], int] = lambda: 1,
    budget: int = BUDGET,
) -> int:
    """Measure how many rows may go through a model at a time, at least one, with its first few rows.

    The budget limits the bytes of the largest of inputs, outputs and intermediate tensors. ``torch.func.vmap`` shows
    the size of a tensor for one model: ``at_once``, read after the first few rows, returns the number of models.
    """
    few = slice(0, min(_PROBE, len(inputs[0])))
    with torch.inference_mode(), _Largest() as largest:
        forward(few)
    size: int = max(largest.bytes, *(rows[few].nbytes for rows in inputs))
    return max(1, budget * few.stop // max(size * at_once(), 1))


def batches(rows: int, most: int) -> Iterator[slice]:
    """Cut ``rows`` rows into the fewest batches of at most ``most`` rows, of nearly equal sizes."""
    count = -(-rows // most)
    bounds = [-(-rows * index // count) for index in range(count + 1)] if count else []
    yield from map(slice, bounds, bounds[1:])
