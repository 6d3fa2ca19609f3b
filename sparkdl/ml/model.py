"""The model that a fit returns: transforms DataFrames, saves, loads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from sparkdl import files
from sparkdl.errors import InvalidInput
from sparkdl.feed import Column, Columns
from sparkdl.ml.params import OutputParams
from sparkdl.ml.saving import ModelReader, ModelWriter, as_program
from sparkdl.ml.scoring import Kind, Scorer, output_type
from sparkdl.objective import ModelFactory
from sparkdl.program import Signature
from sparkdl.spark.columns import named, travelling
from sparkdl.spark.resources import qualified

_SCORED = "sparkdl outputs"


class TorchModel(OutputParams, Model, MLReadable["TorchModel"], MLWritable):
    """A trained model.

    Made by an estimator's ``fit`` or by ``TorchModel.load``.

    Args:
        factory: makes the module.
        weights: safetensors bytes; none where the factory carries them, as a ``sparkdl.program.Program`` does.
        kind: what the module's output means.
        precision: the precision it was trained in.
        history: a row per epoch.
        report: what the run took.
        scalar: whether the module's output is one number for each row.
        signature: of each input the shape of a row and the name of the dtype, such as ``([28, 28], "float32")``; an
            export needs it. None for not known.

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
        signature: Signature | None = None,
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
        self._signature = signature
        self.history = history or []
        self.report = report or {}

    def module(self) -> nn.Module:
        """The trained module on the CPU, in evaluation mode."""
        return self._scorer().module()

    def write(self) -> ModelWriter:
        """The writer; ``write().overwrite().save(path)`` replaces what is there."""
        return ModelWriter(self)

    @classmethod
    def read(cls) -> ModelReader:
        """The reader; ``TorchModel.load(path)`` is the short form."""
        return ModelReader(cls)

    @classmethod
    def load(cls, path: str, trust: bool = False) -> TorchModel:
        """Load a saved model.

        Args:
            path: where it was saved.
            trust: load it even where a part of it is pickled, and loading runs code that is in it.

        Raises:
            InvalidInput: the path holds no model, a damaged one, one of a newer format, one whose factory cannot be
                imported, or without ``trust`` one with pickled parts.
        """
        return cls.read().trust(trust).load(path)

    def exportProgram(self, path: str) -> None:
        """Write the model as a torch.export program for batches of any size, for ``torch.export.load`` elsewhere.

        Args:
            path: of the file, a path or URI; by convention it ends in ``.pt2``.

        Raises:
            InvalidInput: the path exists, or the model cannot be exported.
        """
        root = qualified(SparkSession.active(), path)
        if files.exists(root):
            raise InvalidInput(f"{path} exists; delete it, or export to another path.")
        files.write(root, as_program(self))

    def _scorer(self) -> Scorer:
        floating = "float64" if self._precision == "fp64" else "float32"
        columns = Columns(tuple(Column(name) for name in self.getInputCols()), floating=floating)
        return Scorer(self._factory, self._weights, self._kind, self._precision, columns)

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
        scorer = self._scorer()
        inputs = [travelling(dataset, column, scorer.columns.floating) for column in scorer.columns.inputs]
        scored = dataset.withColumn(_SCORED, make_udf(scorer, scalar=self._scalar)(*inputs))
        field = named(_SCORED).getField
        wanted = {self.getPredictionCol(): field("prediction")}
        if self._kind == "classifier":
            raw, probability = array_to_vector(field("raw")), array_to_vector(field("probability"))
            wanted = {self.getRawPredictionCol(): raw, self.getProbabilityCol(): probability, **wanted}
        kept = [named(name) for name in dataset.columns]
        return scored.select(*kept, *(column.alias(name) for name, column in wanted.items() if name))


def make_udf(scorer: Scorer, *, scalar: bool) -> Any:
    """The scorer as a Spark function of its input columns that returns a struct."""
    returned = output_type(scorer.kind, scalar=scalar, floating=scorer.columns.floating)
    if hasattr(F, "arrow_udf"):

        def score(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
            yield from scorer.scores(batches)

        # Spark reads the hints of the function itself, and they are text here.
        score.__annotations__ = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
        return F.arrow_udf(score, returned)
    return _make_pandas_udf(scorer, returned)


def _make_pandas_udf(scorer: Scorer, returned: Any) -> Any:
    """The same for pyspark 4.0, which has no Arrow UDFs."""
    import pandas as pd
    from pyspark.sql import pandas as spark_pandas

    def score(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.DataFrame]:
        tuples = (batch if isinstance(batch, tuple) else (batch,) for batch in batches)
        arrays = (tuple(pa.Array.from_pandas(series) for series in batch) for batch in tuples)
        for scored in scorer.scores(arrays):
            yield pa.Table.from_struct_array(scored).to_pandas()

    score.__annotations__ = {"batches": Iterator[tuple[pd.Series, ...]], "return": Iterator[pd.DataFrame]}
    make: Any = spark_pandas.functions.pandas_udf
    return make(score, returned)
