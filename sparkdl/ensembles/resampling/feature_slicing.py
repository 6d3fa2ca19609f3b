"""Random subspaces in Spark: fits of a base from any library on some of the features.

Only the last stage of a base sees the subspace. The other stages of a pipeline see all features and make the ones to
choose from, so their number is known when the last stage is fitted. A vector is sliced into a temporary column, which
is dropped after the model. A PyTorch model gets zeros for the other features (``subspace.py``).
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from pyspark.ml import Estimator, Model, Pipeline, PipelineModel, Transformer
from pyspark.ml.feature import VectorSlicer
from pyspark.ml.linalg import VectorUDT
from pyspark.ml.param import Param
from pyspark.ml.param.shared import HasInputCols
from pyspark.ml.pipeline import PipelineModelReader
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable
from pyspark.sql import DataFrame

from sparkdl.data.arrow import decode
from sparkdl.data.batch import Ragged
from sparkdl.data.columns import listed
from sparkdl.data.transforms import Inputs, collated
from sparkdl.ensembles.base_learner import changed, column
from sparkdl.ensembles.resampling.subspace import Subspace, masked
from sparkdl.errors import InvalidInput
from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.serving.format.export import Signature
from sparkdl.spark.columns import col, transport_cast

_SLICED = "sparkdl features"


def sliced(base: Any, subspace: Subspace) -> Estimator[Any]:
    """A base whose last stage sees some of the features; its models read all features and can be saved."""
    if not isinstance(base, Pipeline):
        return SubspaceEstimator(base, subspace)
    *stages, last = base.getStages()
    return Pipeline(stages=[*stages, sliced(last, subspace)])


class SubspaceEstimator(Estimator[Model]):
    """An estimator, but no pipeline, on some of the features."""

    def __init__(self, estimator: Estimator[Any], subspace: Subspace) -> None:
        super().__init__()
        self._estimator, self._subspace = estimator, subspace

    def _fit(self, dataset: DataFrame) -> Model:
        if isinstance(self._estimator, DistributedEstimator):
            shapes = input_shapes(self._estimator, dataset)
            model = masked(self._estimator.getModel(), self._subspace, shapes)
            return cast(Model, changed(self._estimator, model=model).fit(dataset))
        name = column(self._estimator, "featuresCol")
        if name is None:
            raise InvalidInput(
                f"maxFeatures is set, and {type(self._estimator).__name__} has no featuresCol; expected a base that "
                "reads a vector of features, or maxFeatures=None."
            )
        chosen = self._subspace.indices(count_features(dataset, name))
        slicer = VectorSlicer(inputCol=name, outputCol=_SLICED, indices=chosen)
        model = changed(self._estimator, featuresCol=_SLICED).fit(slicer.transform(dataset))
        return SlicedModel([slicer, model, Dropper([_SLICED])])


class SlicedModel(PipelineModel):
    """A model on some of the features; its stages slice them, predict, and drop the slice."""

    def copy(self, extra: dict[Param[Any], Any] | None = None) -> SlicedModel:
        """A copy; a new ``featuresCol`` of the model becomes the slicer's input."""
        slicer, model, _ = self.stages
        values: dict[Any, Any] = dict(extra or {})
        name = values.pop(model.getParam("featuresCol"), None)
        if name is not None:
            values[slicer.getParam("inputCol")] = name
        return SlicedModel([stage.copy(values) for stage in self.stages])._resetUid(self.uid)

    @classmethod
    def read(cls) -> SlicedModelReader:
        """Return the reader."""
        return SlicedModelReader(cls)


class SlicedModelReader(PipelineModelReader):
    """Reads a ``SlicedModel`` like a pipeline model of pyspark.ml."""

    def load(self, path: str) -> SlicedModel:
        """Load the model."""
        pipeline = super().load(path)
        return SlicedModel(pipeline.stages)._resetUid(pipeline.uid)


class Dropper(Transformer, HasInputCols, DefaultParamsReadable["Dropper"], DefaultParamsWritable):
    """Drops columns. With a stage in Python, pyspark saves a ``SlicedModel`` under its own class."""

    def __init__(self, columns: list[str] | None = None) -> None:
        super().__init__()
        self._set(inputCols=columns or [])

    def _transform(self, dataset: DataFrame) -> DataFrame:
        return dataset.drop(*self.getInputCols())


def count_features(dataset: DataFrame, name: str) -> int:
    """Length of a column's vectors, from its ML attributes or its first row."""
    if name not in dataset.columns:
        raise InvalidInput(f"there is no column {name!r}; the data has {listed(dataset.columns)}.")
    schema = dataset.schema[name]
    if not isinstance(schema.dataType, VectorUDT):
        raise InvalidInput(
            f"maxFeatures is set, and column {name!r} has type {schema.dataType.simpleString()[:200]}; expected an ML "
            "vector, as pyspark.ml.feature.VectorAssembler and pyspark.ml.functions.array_to_vector make them."
        )
    if (attributes := schema.metadata.get("ml_attr", {}).get("num_attrs")) is not None:
        return int(attributes)
    first = dataset.select(col(name)).where(col(name).isNotNull()).first()
    if first is None:
        raise InvalidInput(f"maxFeatures is set, and column {name!r} has no vectors: there are no rows to train on.")
    return int(first[0].size)


def input_shapes(estimator: DistributedEstimator, dataset: DataFrame) -> Signature:
    """Row shape and dtype name of each input of a PyTorch model, from the first row."""
    columns = estimator.read_columns()
    selected = [transport_cast(dataset, column, columns.floating) for column in columns.inputs]
    table = dataset.select(*(one.alias(str(number)) for number, one in enumerate(selected))).limit(1).toArrow()
    if not table.num_rows:
        raise InvalidInput("maxFeatures is set, and there are no rows to train on.")
    rows: list[torch.Tensor] = []
    for spec, array in zip(columns.inputs, table.columns, strict=True):
        if spec.ragged is not None:
            raise _ragged(spec.name)
        numbers = decode(array.combine_chunks(), spec, floating=columns.floating, finite=False)
        tensor = torch.from_numpy(np.array(numbers))
        rows.append(tensor.long() if tensor.dtype in (torch.int16, torch.int32) else tensor)
    inputs: Inputs = collated(estimator.collation(), tuple(rows))
    signature: Signature = []
    for number, batch in enumerate(inputs):
        if isinstance(batch, Ragged):
            raise _ragged(number)
        signature.append((list(batch.shape[1:]), str(batch.dtype).removeprefix("torch.")))
    return signature


def _ragged(which: str | int) -> InvalidInput:
    return InvalidInput(
        f"maxFeatures is set, and input {which!r} has rows of several lengths; expected rows of one length, or "
        "maxFeatures=None."
    )
