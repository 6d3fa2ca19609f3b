"""What models predict of a row, side by side in one vector: the features of the model that learns from it.

With bases b = 0 ... B - 1, h_b what base b predicts, x the row's own features and K classes,

    z = (h_0, ..., h_(B-1) [, x])

    h_b    the probabilities of a classifier that gives them, K of them; else its scores, K of them; else the class
           of a regressor its number or numbers

A model that was trained without the rows of the last classes may know fewer than K: then zeros follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType

from sparkdl.data.columns import Column
from sparkdl.ensembles.base_learner import leaf
from sparkdl.errors import InvalidInput
from sparkdl.spark.columns import named, travelling

LEVEL_ONE = "sparkdl level one"

_OUTPUTS = ("probabilityCol", "rawPredictionCol", "predictionCol")  # the first that a model writes is taken


@dataclass(frozen=True)
class LevelOne:
    """How the vector is made.

    Attributes:
        classes: of the labels; None where they are numbers.
        passthrough: the columns of the rows' own features, which follow what the models predict.
    """

    classes: int | None = None
    passthrough: tuple[str, ...] = ()

    def of(self, dataset: DataFrame, models: Sequence[Model]) -> DataFrame:
        """The rows with their vectors, in the column ``LEVEL_ONE``; nothing is computed yet.

        Raises:
            InvalidInput: a model writes no column of predictions; a feature cannot become a number.
        """
        frame, own = dataset, list(dataset.columns)
        parts = []
        for index, model in enumerate(models):
            frame, part = self._predicted(frame, model, index)
            parts.append(named(part))
        parts += [_numbers(frame, name) for name in self.passthrough]
        vector = array_to_vector(F.concat(*parts)).alias(LEVEL_ONE)
        return frame.select(*map(named, own), vector)

    def _predicted(self, frame: DataFrame, model: Model, index: int) -> tuple[DataFrame, str]:
        """The rows with one more column, an array of what the model predicts, and the column's name."""
        hidden = {name: f"sparkdl {name} {index}" for name in _OUTPUTS}
        scored = writing(model, hidden).transform(frame)
        found = next((hidden[name] for name in _OUTPUTS if hidden[name] in scored.columns), None)
        if found is None:
            raise InvalidInput(
                f"the model {model.uid} of base {index} writes none of {', '.join(_OUTPUTS)}; expected a model that "
                "predicts."
            )
        numbers = _numbers(scored, found)
        if self.classes is not None and isinstance(scored.schema[found].dataType, VectorUDT):
            missing = F.greatest(F.lit(self.classes) - F.size(numbers), F.lit(0))
            numbers = F.concat(numbers, F.array_repeat(F.lit(0.0), missing))
        # What else a model writes, as the stages of a pipeline do, would be in the way of the next one's.
        part = f"sparkdl part {index}"
        return scored.select(*map(named, frame.columns), numbers.alias(part)), part


def writing(model: Model, outputs: dict[str, str]) -> Model:
    """A copy of a model that writes its columns under other names.

    Args:
        model: of an estimator, or of a pipeline; of that it is about the last stage that predicts.
        outputs: names by Params, such as ``"predictionCol"``; those that the model does not have are left out.
    """
    last: Any = leaf(model)
    return model.copy({last.getParam(name): column for name, column in outputs.items() if last.hasParam(name)})


def _numbers(frame: DataFrame, name: str) -> SparkColumn:
    """A column as an array of doubles."""
    found = travelling(frame, Column(name), "float64")
    kind = frame.schema[name].dataType
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, ArrayType):
        raise InvalidInput(f"column {name!r} has type {kind.simpleString()}; expected numbers, or one array of them.")
    if isinstance(kind, (ArrayType, VectorUDT)):
        return found.cast("array<double>")
    return F.array(found.cast("double"))
