"""Validates a run without running it: configuration, columns and slots. Spark reads rows only to infer a schema."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.ml import Pipeline
from pyspark.ml.evaluation import Evaluator
from pyspark.ml.linalg import VectorUDT
from pyspark.ml.param import Params
from pyspark.ml.wrapper import JavaParams
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl.cli.data import Data
from sparkdl.cli.pipeline.cleaning import CleaningStage, ScoringStage, SplitStage
from sparkdl.cli.pipeline.gate import Gate
from sparkdl.cli.pipeline.run_name import RunName
from sparkdl.cli.pipeline.spark_errors import reading_rows
from sparkdl.ensembles.base_learner import column
from sparkdl.ensembles.params import EnsembleParams
from sparkdl.errors import InvalidInput
from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.ml.params import PredictionParams
from sparkdl.ml.tracking.registration import Registration
from sparkdl.ml.tuning.params import TunerParams
from sparkdl.rounds import is_algorithm
from sparkdl.spark.columns import select_columns
from sparkdl.spark.session import session_of
from sparkdl.spark.slots.capacity import check


def validate(
    spark: SparkSession,
    name: RunName,
    *,
    data: Data,
    stages: list[Params],
    evaluator: Evaluator,
    clean: CleaningStage,
    split: SplitStage,
    gate: Gate,
    score: ScoringStage | None,
    register: Registration | None,
) -> str:
    """Validate a run with the arguments of ``etl_train``, and report in one line.

    Raises:
        BadInput: rows lack columns, or have types that an expression or a stage rejects.
        InvalidInput: a setting is invalid, or the model could not be registered.
        ClusterUnavailable: a gang needs more slots than the cluster will have.
    """
    if register is not None:
        register.check(stages)
    with reading_rows():
        rows = clean(name.fill(data).read(spark), labelled=True)
        rows.select(split(rows, name.day))
        if gate.checks:
            gate.conditions(rows)
        if score is not None:
            clean(name.fill(score.data).read(spark), labelled=False)
        outputs = _outputs(stages, spark.createDataFrame([], rows.schema))
    valid = f"{name} is valid: {len(rows.columns)} columns, {len(stages)} stages"
    if outputs is None:
        return f"{valid}; the columns after a stage in Python are unknown"
    for metric in gate.all_metrics(evaluator).values():
        _check_evaluator(metric.evaluator, outputs.columns)
    return valid


def _outputs(stages: Sequence[Params], rows: DataFrame) -> DataFrame | None:
    frame: DataFrame | None = rows
    for stage in stages:
        if frame is not None:
            frame = _output(stage, frame)
    return frame


def _output(stage: Params, rows: DataFrame) -> DataFrame | None:
    if isinstance(stage, Pipeline):
        return _outputs(stage.getStages(), rows)
    if isinstance(stage, JavaParams):
        return rows.sparkSession.createDataFrame([], session_of(rows.sparkSession).transformed_schema(stage, rows))
    if isinstance(stage, TunerParams):
        return _output(stage.getEstimator(), rows)
    if isinstance(stage, EnsembleParams):
        for base in stage.base_estimators():
            _output(base, rows)
    elif isinstance(stage, DistributedEstimator):
        _check_estimator(stage, rows)
    if not isinstance(stage, PredictionParams):
        return None
    vectors = ("rawPredictionCol", "probabilityCol")
    kinds: dict[str, T.DataType] = {"predictionCol": T.DoubleType(), **dict.fromkeys(vectors, VectorUDT())}
    named = {column(stage, param): kind for param, kind in kinds.items()}
    return rows.select("*", *(F.lit(None).cast(kind).alias(name) for name, kind in named.items() if name))


def _check_estimator(estimator: DistributedEstimator, rows: DataFrame) -> None:
    select_columns(rows, estimator.derived_columns().columns)
    estimator.training()
    if not is_algorithm(estimator.getStrategy()):
        workers = estimator.getNumWorkers() or estimator.getMinWorkers() or 1
        check(rows.sparkSession, workers, allow_unencrypted=estimator.getAllowUnencrypted())


def _check_evaluator(evaluator: Evaluator, columns: Sequence[str]) -> None:
    for param in filter(evaluator.isDefined, evaluator.params):
        value = evaluator.getOrDefault(param)
        if param.name.endswith("Col") and value and value not in columns:
            raise InvalidInput(
                f"{param.name} of {type(evaluator).__name__} is {value!r}; after the stages the rows have "
                f"{', '.join(columns)}."
            )
