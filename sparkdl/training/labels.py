"""Checks of class labels before the first step, so that an invalid label fails early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import Shard, converted
from sparkdl.errors import InvalidInput

_CHUNK = 1 << 20  # rows per scan


@dataclass(frozen=True)
class Classes:
    """Valid class labels."""

    count: int | None = None  # None if only the model knows it
    ignored: int | None = None  # ``ignore_index`` of the loss; None if it ignores no label


def label_bounds(shard: Shard, classes: Classes) -> tuple[int, int] | None:
    """Smallest and largest class index of a shard; None without labels, or with several target columns."""
    target, bounds = shard.columns.target, list[tuple[int, int]]()
    if isinstance(target, InputColumn):
        for labels in torch.split(converted(shard.tensors, target), _CHUNK):
            valid = labels if classes.ignored is None else labels[labels != classes.ignored]
            if valid.numel():
                bounds.append((int(valid.min()), int(valid.max())))
    return (min(low for low, _ in bounds), max(high for _, high in bounds)) if bounds else None


def are_classes(bounds: tuple[int, int] | None, classes: Classes) -> bool:
    """Whether labels with these bounds are class indices; without labels they are."""
    return bounds is None or (bounds[0] >= 0 and (classes.count is None or bounds[1] < classes.count))


def check_bounds(bounds: Sequence[tuple[int, int] | None], columns: Columns, classes: Classes) -> None:
    """Raise InvalidInput if a label is below 0 or too large, or if all are equal; by ``label_bounds`` of each shard."""
    target, pairs = columns.target, [pair for pair in bounds if pair is not None]
    if not pairs or not isinstance(target, InputColumn):
        return
    least, most = min(low for low, _ in pairs), max(high for _, high in pairs)
    count = classes.count
    if not are_classes((least, most), classes):
        end = "" if count is None else f" to {count - 1}, since there are {count} classes"
        raise InvalidInput(
            f"label column {target.name!r} holds {least if least < 0 else most}; expected class indices from 0{end}. "
            "pyspark.ml.feature.StringIndexer makes class indices from any labels."
        )
    if least == most:
        raise InvalidInput(f"label column {target.name!r} holds {least} in every row; expected at least two classes.")
