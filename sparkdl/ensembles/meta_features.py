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

from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType

from sparkdl.data.columns import InputColumn
from sparkdl.ensembles.base_learner import changed
from sparkdl.errors import InvalidInput
from sparkdl.spark.columns import col, transport_cast

LEVEL_ONE = "sparkdl level one"
_PREDICTIONS = "sparkdl predictions {}"

_OUTPUTS = ("probabilityCol", "rawPredictionCol", "predictionCol")  # the first column that a model writes counts


@dataclass(frozen=True)
class MetaFeatureAssembler:
    """Assembles the vectors of meta features, with so many classes, or None for regression.

    ``passthrough`` are the feature columns that follow the predictions.
    """

    classes: int | None = None
    passthrough: tuple[str, ...] = ()

    def of(self, dataset: DataFrame, models: Sequence[Model]) -> DataFrame:
        """The rows with their vectors in the column ``LEVEL_ONE``, as a lazy DataFrame."""
        frame = dataset
        for index, model in enumerate(models):
            frame = self._with_predictions(frame, model, index)
        predictions = [col(_PREDICTIONS.format(index)) for index in range(len(models))]
        vector = F.concat(*predictions, *(_numbers(frame, name) for name in self.passthrough))
        return frame.select(*map(col, dataset.columns), array_to_vector(vector).alias(LEVEL_ONE))

    def _with_predictions(self, frame: DataFrame, model: Model, index: int) -> DataFrame:
        hidden = {name: f"sparkdl {name} {index}" for name in _OUTPUTS}
        scored = changed(model, **hidden).transform(frame)
        output = next((column for column in hidden.values() if column in scored.columns), None)
        if output is None:
            raise InvalidInput(
                f"the model {model.uid} of base {index} writes none of {', '.join(_OUTPUTS)}; expected a model that "
                "predicts."
            )
        numbers = _numbers(scored, output)
        if self.classes is not None and isinstance(scored.schema[output].dataType, VectorUDT):
            missing = F.greatest(F.lit(self.classes) - F.size(numbers), F.lit(0))
            numbers = F.concat(numbers, F.array_repeat(F.lit(0.0), missing))
        # Other columns of a model, such as those of pipeline stages, would collide with those of the next model.
        return scored.select(*map(col, frame.columns), numbers.alias(_PREDICTIONS.format(index)))


def _numbers(frame: DataFrame, name: str) -> SparkColumn:
    numbers = transport_cast(frame, InputColumn(name), "float64")
    kind = frame.schema[name].dataType
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, ArrayType):
        raise InvalidInput(f"column {name!r} has type {kind.simpleString()}; expected numbers, or one array of them.")
    if isinstance(kind, (ArrayType, VectorUDT)):
        return numbers.cast("array<double>")
    return F.array(numbers.cast("double"))
