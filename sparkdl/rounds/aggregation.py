"""Weighted means of weights over shards, computed from sums.

sum_k p_k w_k / sum_k p_k        with ``p_k`` the share of shard k: ``scaled`` on shards, ``average`` on the driver
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sparkdl.errors import InvalidInput
from sparkdl.rounds import Update
from sparkdl.rounds.parameters import is_inexact


def scaled(weights: Mapping[str, Tensor], share: float) -> Update:
    """Weights times the shard's share, and the share, as terms of the sums that ``average`` divides."""
    terms = {name: value if is_inexact(value) else value.double() for name, value in weights.items()}
    return {**{f"weights/{name}": value * share for name, value in terms.items()}, **scalars(share=share)}


def average(update: Update, like: Mapping[str, Tensor]) -> Update:
    """The weighted mean of weights in the dtypes of ``like``, integers rounded; overwrites the sums.

    Tensors without an entry in ``update`` stay those of ``like``. Raises InvalidInput if the shares sum to 0.
    """
    share = positive(update["share"])
    # In place, since the driver may lack the memory for another copy of a large model.
    means = {name: update[f"weights/{name}"].div_(share) for name in like if f"weights/{name}" in update}
    rounded = {name: mean if is_inexact(like[name]) else mean.round() for name, mean in means.items()}
    return {name: rounded[name].to(tensor.dtype) if name in rounded else tensor for name, tensor in like.items()}


def positive(denominator: Tensor) -> float:
    """The total denominator of the rows; raises InvalidInput if it is 0."""
    if not float(denominator):
        raise InvalidInput("no row weighs anything: all weights are 0, or all labels are ignored.")
    return float(denominator)


def scalars(**values: Tensor | float) -> Update:
    """Numbers as float64 scalar tensors on the CPU."""
    return {name: torch.as_tensor(value, dtype=torch.float64, device="cpu") for name, value in values.items()}
