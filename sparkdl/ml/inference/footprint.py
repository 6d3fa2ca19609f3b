"""What a row takes in memory on its way through a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sparkdl.data.batch import Input

BUDGET = 128 << 20  # bytes of the largest tensor of a piece; an operation has its input and its output at a time
_PROBE = 8  # rows that are sent through the model to see what they take


class _Largest(TorchFunctionMode):
    """Notes the size of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.bytes = max(self.bytes, result.numel() * result.element_size())
        return result


def most_rows(
    forward: Callable[[slice], Any],
    inputs: Sequence[Input],
    *,
    at_once: Callable[[], int] = lambda: 1,
    budget: int = BUDGET,
) -> int:
    """How many rows may go through a model at a time, at least one.

    Measured with the first few rows, since what lies between input and output may be many times larger than both.

    Args:
        forward: puts some of the rows through the model.
        inputs: the rows, at least one.
        at_once: how many models the rows go through at the same time, asked when some have gone through: what
            ``torch.func.vmap`` makes of them is seen here with the size that it has for one.
        budget: bytes of the largest tensor.
    """
    few = slice(0, min(_PROBE, len(inputs[0])))
    with torch.inference_mode(), _Largest() as largest:
        forward(few)
    taken: int = max(largest.bytes, *(each[few].nbytes for each in inputs))
    return max(1, budget * min(_PROBE, len(inputs[0])) // max(taken * at_once(), 1))
