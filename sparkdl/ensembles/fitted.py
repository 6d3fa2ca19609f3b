"""What every fitted ensemble does beside ``transform``: evaluate, predict and summarize."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from sparkdl.ensembles.base_learner import column, leaf
from sparkdl.ensembles.declarations import LabelParams
from sparkdl.errors import InvalidInput
from sparkdl.ml.evaluation import Metrics, OutputColumns, measure
from sparkdl.ml.model import TorchModel
from sparkdl.ml.trials.composite import CompositeModel
from sparkdl.ml.udf import predict_on_spark
from sparkdl.spark.columns import check_frame
from sparkdl.training.objective.labels import IGNORED

_OUTPUTS = ("predictionCol", "probabilityCol", "rawPredictionCol")


class FittedEnsemble(LabelParams, CompositeModel):
    """Base class of ``EnsembleModel``, ``StackingModel`` and ``BestOfModel``."""

    def evaluate(self, dataset: DataFrame) -> Metrics:
        """Compute the metrics of the predictions over the rows that have a label, as ``TorchModel.evaluate`` does.

        The label column is ``labelCol``; default: that of the members.

        Raises:
            InvalidInput: the label column is unknown, missing or not numeric, or no row has a label.
        """
        check_frame(dataset)
        return self._measured(dataset, self.getLabelCol())

    def predict(self, data: Any) -> Any:
        """Predict the columns that ``transform`` adds, the prediction first.

        PyTorch members that read the same columns predict in this process. Other members, and those of a stacking,
        predict in a job of the active Spark session, which gets lists and arrays of real numbers as vectors.

        Args:
            data: a pandas DataFrame, a pyarrow Table, or a mapping of columns by name.

        Returns:
            A Table for a Table; else a pandas DataFrame, in which vectors and arrays are numpy arrays.

        Raises:
            InvalidInput: the data has no named columns.
        """
        names = [column(writer_of(self), name) for name in (*_OUTPUTS, "disagreementCol")]
        return predict_on_spark(data, self.transform, names)

    def _measured(self, dataset: DataFrame, label: Any) -> Metrics:
        raise NotImplementedError


def evaluate(model: Any, dataset: DataFrame, label: str | list[str] | None = None) -> Metrics:
    """Evaluate any fitted model that predicts; ``label`` replaces its own label column."""
    if isinstance(model, TorchModel | FittedEnsemble):
        return (model if label is None else model.copy({model.labelCol: label})).evaluate(dataset)
    label = label or column(model, "labelCol")
    if not isinstance(label, str):
        raise InvalidInput(f"labelCol is {label}; expected one column, as in model.setLabelCol('label').")
    return measure(model.transform(dataset), label, output_columns(model))


def writer_of(model: Any) -> Any:
    """The model whose output columns any fitted model writes."""
    last: Any = leaf(model)
    inner = getattr(last, "meta", getattr(last, "bestModel", None)) if isinstance(last, FittedEnsemble) else None
    return last if inner is None else writer_of(inner)


def output_columns(model: Any) -> OutputColumns:
    """The names of a model's output columns, and the label that it ignores; an ensemble ignores its members' label."""
    member = writer_of(model)
    prediction, probability, raw = (column(member, name) for name in _OUTPUTS)
    while isinstance(member, FittedEnsemble):
        member = writer_of(member.models[0])  # type: ignore[attr-defined]
    return OutputColumns(str(prediction), probability, raw, getattr(member, "ignoredLabel", IGNORED))
