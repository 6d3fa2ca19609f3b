"""A saved PipelineModel for MLflow: which stages it may have, and the proof that it predicts as Spark does."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.linalg import VectorUDT
from pyspark.ml.param import Params
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from sparkdl.data.columns import listed
from sparkdl.errors import InvalidInput, SparkdlError
from sparkdl.io import files
from sparkdl.io.optional_imports import required
from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.ml.model import TorchModel
from sparkdl.ml.persistence.reader_writer import load_saved, session_trust
from sparkdl.ml.tracking.mlflow_model import ServedModel, columns_schema
from sparkdl.ml.tuning.model import TorchTunerModel
from sparkdl.ml.tuning.params import TunerParams
from sparkdl.serving.features import reader
from sparkdl.serving.features.conversion import arrow_type
from sparkdl.serving.loading import load_predictor
from sparkdl.spark.columns import check_frame, col
from sparkdl.spark.session import qualify

_ROWS = 500
_TOLERANCE = 1e-5
# MLflow's names of Spark's types.
_TYPES = dict.fromkeys(("tinyint", "smallint", "int"), "integer") | {"bigint": "long"}
_TYPES |= {name: name for name in ("string", "boolean", "float", "double", "binary")}

Described = tuple[str, str, int]
"""The name of a column, MLflow's name of its type, and the depth of its arrays, 0 for none."""


@dataclass(frozen=True)
class VerifiedColumns:
    """The columns of a verified pipeline, and the number of rows on which it predicts as Spark does."""

    inputs: list[Described]
    outputs: list[Described]
    rows: int

    def json(self) -> dict[str, Any]:
        """The fields, as JSON values."""
        return asdict(self)

    @staticmethod
    def of(values: dict[str, Any]) -> VerifiedColumns:
        """Read the fields of ``json``."""
        return VerifiedColumns(values["inputs"], values["outputs"], values["rows"])

    def served(self, path: str) -> ServedModel:
        """The pipeline in a folder, for MLflow."""
        schemas = map(columns_schema, (self.inputs, self.outputs))
        signature = required("mlflow.models", "mlflow").ModelSignature(*schemas)
        return ServedModel(lambda folder: files.copy(path, folder), signature)


def check_stages(stages: Sequence[Params]) -> None:
    """Check, before training, that a fitted pipeline predicts without Spark; raises ``InvalidInput`` if it does not."""
    torch, indexed = False, set[str]()
    for stage in _flat(stages):
        if isinstance(stage, (DistributedEstimator, TorchModel, TunerParams, TorchTunerModel)):
            torch = True
            continue
        kind = type(stage).__name__
        fitted = {"QuantileDiscretizer": "Bucketizer"}.get(kind, kind.removesuffix("Model"))
        if type(stage).__module__ != "pyspark.ml.feature" or fitted not in reader.SUPPORTED:
            raise InvalidInput(reader.unsupported(kind))
        params = {param.name: stage.getOrDefault(param) for param in stage.params if stage.isDefined(param)}
        reader.check(kind, params)
        if fitted == "StringIndexer":
            indexed |= {*(params.get("outputCols") or [params.get("outputCol")])}
        if fitted == "IndexToString" and not params.get("labels") and params.get("inputCol") not in indexed:
            raise InvalidInput(reader.without_labels(kind, params.get("inputCol", "")))
    if not torch:
        raise InvalidInput("no stage is a PyTorch estimator of sparkdl; expected one, or leave out register.")


def _flat(stages: Sequence[Any]) -> Iterator[Params]:
    for stage in stages:
        if isinstance(stage, Pipeline):
            yield from _flat(stage.getStages())
        elif isinstance(stage, PipelineModel):
            yield from _flat(stage.stages)
        else:
            yield stage


def verify(path: str, rows: DataFrame) -> VerifiedColumns:
    """Compare the predictions of a saved pipeline, without Spark, with Spark's, on up to 500 rows.

    Raises:
        InvalidInput: the path holds no such pipeline, or the rows lack columns or have types that MLflow does not know.
        SparkdlError: the predictions differ.
    """
    check_frame(rows, bounded=True)
    spark = rows.sparkSession
    root, trust = qualify(spark, path), session_trust(spark)
    served = load_predictor(root, trust=trust.pickles, modules=trust.modules)
    if missing := [name for name in served.inputs if name not in rows.columns]:
        raise InvalidInput(f"the pipeline reads {listed(missing)}; the rows have {listed(rows.columns)}.")
    inputs = [_described(name, rows.schema[name].dataType) for name in served.inputs]
    compared = [*served.inputs, *served.outputs]
    collected = load_saved(root, spark).transform(rows.limit(_ROWS)).select(*map(col, compared)).collect()
    if not collected:
        raise InvalidInput("there is no row to compare predictions on; expected at least one.")
    values = dict(zip(compared, map(list, zip(*collected, strict=True)), strict=True))
    input_values, types = {name: list(map(_array, values[name])) for name in served.inputs}, dict(rows.dtypes)
    requests = {
        "pandas": pd.DataFrame({name: values[name] for name in input_values}),
        "Arrow": pa.table({name: pa.array(input_values[name], arrow_type(types[name])) for name in input_values}),
        "JSON": [dict(zip(input_values, row, strict=True)) for row in zip(*input_values.values(), strict=True)],
    }
    for form, request in requests.items():
        try:
            predicted = served.predict(request)
        except InvalidInput as error:
            if form != "pandas":
                raise
            # Such as integers above 2^53 beside a null: pandas changes them, and a server refuses them too.
            warnings.warn(f"predictions from {form} are not compared: {error.message}", stacklevel=2)
            continue
        frame = predicted.to_pandas() if isinstance(predicted, pa.Table) else predicted
        for name in served.outputs:
            _compare(f"{name!r} from {form}", values[name], frame[name].tolist())
    return VerifiedColumns(inputs, served.output_types, len(collected))


def _described(name: str, kind: T.DataType) -> Described:
    depth, element = 0, T.ArrayType(T.DoubleType()) if isinstance(kind, VectorUDT) else kind
    while isinstance(element, T.ArrayType):
        depth, element = depth + 1, element.elementType
    if element.simpleString() not in _TYPES:
        raise InvalidInput(
            f"column {name!r} has type {kind.simpleString()}, which has no type in MLflow; cast it to one of "
            f"{', '.join(_TYPES)}."
        )
    return name, _TYPES[element.simpleString()], depth


def _array(value: Any) -> Any:
    return value.toArray().tolist() if hasattr(value, "toArray") else value


def _compare(name: str, expected: list[Any], predicted: list[Any]) -> None:
    for row, (spark_value, value) in enumerate(zip(map(_array, expected), predicted, strict=True)):
        if spark_value is None or value is None or isinstance(spark_value, str):
            same = spark_value == value
        else:
            same = np.shape(spark_value) == np.shape(value) and np.allclose(
                value, spark_value, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True
            )
        if not same:
            raise SparkdlError(
                f"without Spark, {name} of row {row} is {value}, and with Spark {spark_value}; nothing is registered. "
                "Expected equal predictions: leave out register, and report the stages of the pipeline."
            )
