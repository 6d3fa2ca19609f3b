"""Class labels, looked at before the first step: a wrong one would end the run in the middle, or never be noticed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sparkdl.cluster.group.world import Group
from sparkdl.data.columns import Column, Columns
from sparkdl.data.shard import Part, numbers
from sparkdl.errors import InvalidInput

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
    check_bounds(group.gather(label_bounds(part, classes)), part.columns, classes)


def label_bounds(part: Part, classes: Classes) -> tuple[int, int] | None:
    """The least and the largest class index of a part; None without any, as where several columns are the target."""
    target = part.columns.target
    return _bounds(numbers(part.tensors, target.name), classes.ignored) if isinstance(target, Column) else None


def check_bounds(bounds: Sequence[tuple[int, int] | None], columns: Columns, classes: Classes) -> None:
    """Check the class indices of all parts.

    Args:
        bounds: of every part, as ``label_bounds`` gives them.
        columns: what the parts have.
        classes: what there may be.

    Raises:
        InvalidInput: a label is below 0 or too large, or all rows have the same one.
    """
    target, found = columns.target, [each for each in bounds if each is not None]
    if not found or not isinstance(target, Column):
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
