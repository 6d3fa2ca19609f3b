"""The model that a fit returns: transforms DataFrames, saves, loads."""

from __future__ import annotations

import json
import warnings
from typing import Any

from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import DataFrame, SparkSession
from torch import nn

from sparkdl import factory as factories
from sparkdl import files
from sparkdl.errors import InvalidInput
from sparkdl.feed import Columns
from sparkdl.ml.outputs import Kind
from sparkdl.ml.params import OutputParams, described
from sparkdl.ml.scoring import Scorer
from sparkdl.ml.shipping import Shipment
from sparkdl.ml.udf import costly, make_udf
from sparkdl.objective import ModelFactory
from sparkdl.spark.columns import named, travelling
from sparkdl.spark.resources import qualified

_WEIGHTS = "weights.safetensors"
_FORMAT = 1
_SCORED = "sparkdl outputs"


class TorchModel(OutputParams, Model, MLReadable["TorchModel"], MLWritable):
    """A trained model.

    Made by an estimator's ``fit`` or by ``TorchModel.load``.

    Args:
        factory: makes the module.
        weights: safetensors bytes.
        kind: what the module's output means.
        precision: the precision it was trained in.
        history: a row per epoch.
        report: what the run took.
        scalar: whether the module's output is one number for each row.

    Attributes:
        history: list of dicts, a row per epoch: ``epoch, step, samples, loss``, ``valid_*``, ``seconds``,
            ``rows_per_second``.
        report: dict of ``seconds, train_seconds, rows, rows_per_second, bytes, restarts, skew`` and more.
    """

    def __init__(
        self,
        *,
        factory: ModelFactory | nn.Module,
        weights: bytes,
        kind: Kind = "estimator",
        precision: str = "fp32",
        history: list[dict[str, Any]] | None = None,
        report: dict[str, Any] | None = None,
        scalar: bool = False,
    ) -> None:
        super().__init__()
        self._setDefault(
            inputCols=["features"],
            featuresCol="features",
            columns=[],
            collate=None,
            thresholds=None,
            predictionCol="prediction",
            rawPredictionCol="rawPrediction",
            probabilityCol="probability",
        )
        self._factory = factory
        self._weights = weights
        self._kind: Kind = kind
        self._precision = precision
        self._scalar = scalar
        self._shipment = Shipment()
        self.history = history or []
        self.report = report or {}

    def module(self) -> nn.Module:
        """The trained module on the CPU, in evaluation mode."""
        return self._scorer().module()

    def write(self) -> MLWriter:
        """The writer; ``write().overwrite().save(path)`` replaces what is there."""
        return TorchModelWriter(self)

    @classmethod
    def read(cls) -> TorchModelReader:
        """The reader; ``TorchModel.load(path)`` is the short form."""
        return TorchModelReader()

    def _scorer(self) -> Scorer:
        floating = "float64" if self._precision == "fp64" else "float32"
        columns = Columns(described(self.getInputCols(), self.getColumns()), floating=floating)
        thresholds = self.getThresholds()
        return Scorer(
            self._factory,
            self._weights,
            self._kind,
            self._precision,
            columns,
            self.getCollate(),
            thresholds=None if thresholds is None else tuple(thresholds),
            scalar=self._scalar,
            vectors=bool(self.getRawPredictionCol() or self.getProbabilityCol()),
        )

    def _check_outputs(self, dataset: DataFrame) -> None:
        params = [self.predictionCol]
        if self._kind == "classifier":
            params += [self.rawPredictionCol, self.probabilityCol]
        taken = list(dataset.columns)
        for param in params:
            name = self.getOrDefault(param)
            if name and name in taken:
                raise InvalidInput(f"there is a column {name!r} already; drop it, or set {param.name} to another name.")
            taken.append(name)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        self._check_outputs(dataset)
        if self._kind != "classifier" and self.getThresholds() is not None:
            warnings.warn(f"thresholds are for classifiers; those of this {self._kind} are ignored.", stacklevel=3)
        scorer = self._scorer()
        inputs = [travelling(dataset, column, scorer.columns.floating) for column in scorer.columns.inputs]
        first = dataset.schema[scorer.columns.inputs[0].name].dataType
        scoring = make_udf(self._shipment.ship(scorer, dataset.sparkSession))
        scored = dataset.withColumn(_SCORED, scoring(costly(inputs[0], first), *inputs[1:]))
        field = named(_SCORED).getField
        single = len(scorer.returned()) == 1
        wanted = {self.getPredictionCol(): named(_SCORED) if single else field("prediction")}
        if self._kind == "classifier" and not single:
            raw, probability = array_to_vector(field("raw")), array_to_vector(field("probability"))
            wanted = {self.getRawPredictionCol(): raw, self.getProbabilityCol(): probability, **wanted}
        kept = [named(name) for name in dataset.columns]
        return scored.select(*kept, *(column.alias(name) for name, column in wanted.items() if name))


class TorchModelWriter(MLWriter):
    """Writes ``metadata/`` as pyspark.ml does, and the weights as one safetensors file.

    Args:
        model: what is written.
    """

    def __init__(self, model: TorchModel) -> None:
        super().__init__()
        self._model = model

    def save(self, path: str) -> None:
        """Save the model; one that cannot be saved leaves untouched what was to be overwritten."""
        factories.describe(self._model._factory)
        super().save(path)

    def saveImpl(self, path: str) -> None:
        """Write the model; weights first, so that a path with metadata is a whole model.

        Raises:
            InvalidInput: the model's factory cannot be imported by another program, or the path exists.
        """
        model, spark = self._model, self.sparkSession
        described = factories.describe(model._factory)
        root = qualified(spark, path)
        if files.exists(root):
            raise InvalidInput(f"{path} exists; use write().overwrite().save(path) to replace it.")
        files.write(f"{root}/{_WEIGHTS}", model._weights)
        extra = {
            "sparkdl": {
                "format": _FORMAT,
                "factory": described,
                "kind": model._kind,
                "precision": model._precision,
                "scalar": model._scalar,
                "history": model.history,
                "report": model.report,
            }
        }
        DefaultParamsWriter.saveMetadata(model, path, spark, extraMetadata=json.loads(json.dumps(extra)))


class TorchModelReader(MLReader["TorchModel"]):
    """Reads what ``TorchModelWriter`` wrote; nothing is unpickled."""

    def load(self, path: str) -> TorchModel:
        """Load a model.

        Raises:
            InvalidInput: the path holds no model, one of a newer format, or one whose factory cannot be imported.
        """
        spark: SparkSession = self.sparkSession
        metadata = DefaultParamsReader.loadMetadata(path, spark)
        found = metadata.get("sparkdl")
        if found is None:
            raise InvalidInput(f"{path} holds a {metadata.get('class')}; expected a sparkdl TorchModel.")
        if found["format"] > _FORMAT:
            raise InvalidInput(f"{path} was written by a newer sparkdl (format {found['format']}); expected {_FORMAT}.")
        model = TorchModel(
            factory=factories.resolve(found["factory"]),
            weights=files.read(f"{qualified(spark, path)}/{_WEIGHTS}"),
            kind=found["kind"],
            precision=found["precision"],
            history=found["history"],
            report=found["report"],
            scalar=found["scalar"],
        )
        model._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(model, metadata)
        return model
