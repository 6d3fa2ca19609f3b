"""Class labels, looked at before the first step: a wrong one would end the run in the middle, or never be noticed."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sparkdl.errors import InvalidInput
from sparkdl.feed.columns import Column
from sparkdl.feed.part import Part, numbers
from sparkdl.world import Group

_CHUNK = 1 << 20  # rows looked at together


@dataclass(frozen=True)
class Classes:
    """What labels are checked for.

    Attributes:
        count: how many classes there are; None where only the model knows.
        ignored: a label that the loss leaves out, its ``ignore_index``.
    """

    count: int | None = None
    ignored: int | None = None


def check_labels(part: Part, group: Group, classes: Classes) -> None:
    """Check the class indices of every member's rows, training and validation alike.

    Args:
        part: this member's rows.
        group: the members, all of which raise the same error.
        classes: what there may be.

    Raises:
        InvalidInput: a label is below 0 or too large, or all rows have the same one.
    """
    target = part.columns.target
    if not isinstance(target, Column):
        return  # several columns are no class indices
    found = [
        bounds
        for bounds in group.gather(_bounds(numbers(part.tensors, target.name), classes.ignored))
        if bounds is not None
    ]
    if not found:
        return
    least, most = min(low for low, _ in found), max(high for _, high in found)
    count = classes.count
    if least < 0 or (count is not None and most >= count):
        wanted = "class indices from 0" + ("" if count is None else f" to {count - 1}, since there are {count} classes")
        raise InvalidInput(
            f"label column {target.name!r} holds {least if least < 0 else most}; expected {wanted}. "
            "pyspark.ml.feature.StringIndexer makes class indices of any labels."
        )
    if least == most:
        raise InvalidInput(
            f"label column {target.name!r} holds {least} in every row; expected at least two classes to tell apart."
        )


def _bounds(labels: Tensor, ignored: int | None) -> tuple[int, int] | None:
    """The least and the largest label; None without any."""
    bounds: list[tuple[int, int]] = []
    for first in range(0, len(labels), _CHUNK):
        chunk = labels[first : first + _CHUNK]
        chunk = chunk if ignored is None else chunk[chunk != ignored]
        if chunk.numel():
            bounds.append((int(chunk.min()), int(chunk.max())))
    return (min(low for low, _ in bounds), max(high for _, high in bounds)) if bounds else None
