"""Checks of labels before the first step, so that an invalid label fails early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sparkdl.data.batch import Input
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import converted
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields, Count

IGNORED = -100
"""The label that a model ignores if nothing is known of its loss: the default of torch."""

LabelBounds = dict[str, tuple[float, float]]
"""The smallest and the largest label by column."""


@dataclass(frozen=True)
class Classes(CheckedFields):
    """Valid labels of a classifier.

    Attributes:
        count: number of classes; None if only the model knows it.
        ignored: ``ignore_index`` of the loss; None if it ignores no label.
        independent: whether a row has several labels, each a number in [0, 1], and no class index.
        by_output: whether the model's output bounds the labels, too; a collate function may change them before.
    """

    count: Count | None = None
    ignored: int | None = None
    independent: bool = False
    by_output: bool = False

    def of_output(self, shape: Sequence[int] | None) -> Classes:
        """The labels that a model takes whose output of one row has this shape; None if it is no tensor."""
        if shape is None or not self.by_output:
            return self
        scores = max([2, *shape[:1]])  # a single score is of two classes
        return replace(self, count=min(scores, self.count or scores))


class LabelScan:
    """Finds the bounds of a shard's labels; of several columns only if they are independent, without ignored labels.

    Attributes:
        bounds: the bounds, once all rows are read.
    """

    def __init__(self, columns: Columns, classes: Classes) -> None:
        checked = classes.independent or isinstance(columns.target, InputColumn)
        self._targets, self._ignored = columns.targets if checked else (), classes.ignored
        self.names = [column.name for column in self._targets]
        self.bounds = LabelBounds()

    def visit(self, first: int, rows: Mapping[str, Input]) -> None:
        """Widen the bounds by some rows."""
        for column in self._targets:
            labels = converted(rows, column)
            valid = labels if self._ignored is None else labels[labels != self._ignored]
            if valid.numel():
                low, high = self.bounds.get(column.name, (valid.min().item(),) * 2)
                self.bounds[column.name] = min(low, valid.min().item()), max(high, valid.max().item())


def are_valid(bounds: LabelBounds, classes: Classes) -> bool:
    """Whether labels with these bounds are valid; without labels they are."""
    most = 1 if classes.independent else float("inf") if classes.count is None else classes.count - 1
    return all(low >= 0 and high <= most for low, high in bounds.values())


def check_bounds(shards: Sequence[LabelBounds], classes: Classes) -> None:
    """Raise InvalidInput if a label is invalid, or if all rows have one class; by a ``LabelScan`` of each shard."""
    for name in {name: None for bounds in shards for name in bounds}:
        pairs = [bounds[name] for bounds in shards if name in bounds]
        least, most = min(low for low, _ in pairs), max(high for _, high in pairs)
        if not are_valid({name: (least, most)}, classes):
            raise InvalidInput(
                f"label column {name!r} holds {_text(least if least < 0 else most)}; {_expected(classes)}"
            )
        if least == most and not classes.independent:
            raise InvalidInput(
                f"label column {name!r} holds {_text(least)} in every row; expected at least two classes."
            )


def _text(label: float) -> str:
    return str(int(label) if label == int(label) else label)


def _expected(classes: Classes) -> str:
    if classes.independent:
        return (
            "expected numbers from 0 to 1, since multiLabel is True: each is the probability of a label, mostly 0 or 1."
        )
    end = "" if classes.count is None else f" to {classes.count - 1}, for the model's {classes.count} classes"
    return f"expected class indices from 0{end}. pyspark.ml.feature.StringIndexer makes class indices from any labels."
