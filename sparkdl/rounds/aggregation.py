"""Weighted means of weights over parts, as sums that are divided in the end.

sum_k p_k w_k / sum_k p_k        with ``p_k`` the share of part k: ``weighed`` on the parts, ``average`` on the driver
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sparkdl.errors import InvalidInput
from sparkdl.rounds import Update
from sparkdl.rounds.parameters import Weights


def weighed(weights: Mapping[str, Tensor], share: float) -> Update:
    """Weights times a part's share, and the share: what ``average`` divides when all are added."""
    found = {f"weights/{name}": tensor.to(_summed(tensor)) * share for name, tensor in weights.items()}
    return {**found, **scalars(share=share)}


def average(update: Update, like: Mapping[str, Tensor]) -> Weights:
    """The weighted mean of weights, in the dtypes of ``like``; whole numbers are rounded. The sums become it.

    What is not in the update stays as it is in ``like``.

    Raises:
        InvalidInput: nobody has a share in it.
    """
    share = float(update["share"])
    if not share:
        raise InvalidInput("no row weighs anything: all weights are 0, or all labels are ignored.")
    # In place: a model may be so large that the driver should not hold one more of it.
    means = {name: update[f"weights/{name}"].div_(share) for name in like if f"weights/{name}" in update}
    found = {
        name: (mean if like[name].is_floating_point() else mean.round()).to(like[name].dtype)
        for name, mean in means.items()
    }
    return {name: found.get(name, tensor) for name, tensor in like.items()}


def _summed(tensor: Tensor) -> torch.dtype:
    return tensor.dtype if tensor.is_floating_point() else torch.float64


def scalars(**values: Tensor | float) -> Update:
    """Numbers as an update has them, float64 scalars."""
    return {name: torch.as_tensor(value, dtype=torch.float64) for name, value in values.items()}
