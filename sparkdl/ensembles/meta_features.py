"""Meta features: the predictions of all bases for a row, concatenated to one vector.

With bases b = 0 ... B - 1, the prediction h_b of base b, the row's own features x, and K classes,

    z = (h_0, ..., h_(B-1) [, x])

    h_b    of a classifier, its K probabilities; else its K scores; else its class
           of a regressor, its number or numbers

If a model was trained without rows of the last classes and writes fewer than K numbers, zeros pad its vector.
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

from sparkdl.data.columns import InputColumn
from sparkdl.ensembles.base_learner import leaf
from sparkdl.errors import InvalidInput
from sparkdl.spark.columns import col, transport_cast

LEVEL_ONE = "sparkdl level one"

_OUTPUTS = ("probabilityCol", "rawPredictionCol", "predictionCol")  # the first column that a model writes counts


@dataclass(frozen=True)
class LevelOne:
    """Assembles the vector of meta features.

    Attributes:
        classes: number of classes; default: none, for regression.
        passthrough: feature columns appended to the predictions; default: none.
    """

    classes: int | None = None
    passthrough: tuple[str, ...] = ()

    def of(self, dataset: DataFrame, models: Sequence[Model]) -> DataFrame:
        """The rows with their vectors in the column ``LEVEL_ONE``, as a lazy DataFrame.

        Raises:
            InvalidInput: a model writes no prediction column, or a feature cannot become a number.
        """
        frame, own = dataset, list(dataset.columns)
        parts = []
        for index, model in enumerate(models):
            frame, part = self._predicted(frame, model, index)
            parts.append(col(part))
        parts += [_numbers(frame, name) for name in self.passthrough]
        vector = array_to_vector(F.concat(*parts)).alias(LEVEL_ONE)
        return frame.select(*map(col, own), vector)

    def _predicted(self, frame: DataFrame, model: Model, index: int) -> tuple[DataFrame, str]:
        hidden = {name: f"sparkdl {name} {index}" for name in _OUTPUTS}
        last: Any = leaf(model)
        columns = {last.getParam(name): column for name, column in hidden.items() if last.hasParam(name)}
        scored = model.copy(columns).transform(frame)
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
        # Other columns of a model, such as those of pipeline stages, would collide with those of the next model.
        part = f"sparkdl part {index}"
        return scored.select(*map(col, frame.columns), numbers.alias(part)), part


def _numbers(frame: DataFrame, name: str) -> SparkColumn:
    found = transport_cast(frame, InputColumn(name), "float64")
    kind = frame.schema[name].dataType
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, ArrayType):
        raise InvalidInput(f"column {name!r} has type {kind.simpleString()}; expected numbers, or one array of them.")
    if isinstance(kind, (ArrayType, VectorUDT)):
        return found.cast("array<double>")
    return F.array(found.cast("double"))
