"""Metrics of predictions against true labels, as values and as text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from operator import and_
from typing import Any, ClassVar

from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.functions import vector_to_array
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, NumericType

from sparkdl.data.columns import listed
from sparkdl.errors import InvalidInput
from sparkdl.spark.columns import VECTORS, col
from sparkdl.training.objective.labels import IGNORED

MOST_CLASSES = 20  # the largest number of classes whose table fits a terminal
_LEAST = 1e-15  # smaller probabilities count as this one: the logarithm of 0 is infinite

Counts = dict[tuple[int, int], int]
"""Number of rows by (label, prediction)."""


@dataclass(frozen=True)
class OutputColumns:
    """Names of the columns that a model writes, or None for a missing column, and the label that its loss ignores."""

    prediction: str
    probability: str | None = None
    raw_prediction: str | None = None
    ignored: int | None = IGNORED

    def of_classifier(self, predictions: DataFrame) -> bool:
        """Whether the model is a classifier, by the columns of its predictions."""
        return bool({self.probability, self.raw_prediction} & set(predictions.columns))


class Metrics:
    """Metrics of predictions: ``str`` is their text, and ``repr`` begins with the most important ones."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.figures().items())})"

    def __str__(self) -> str:
        return self.text()

    _names: ClassVar[tuple[str, ...]] = ()

    def figures(self) -> dict[str, Any]:
        """The metrics as JSON values, the most important ones first."""
        return {name: getattr(self, name) for name in self._names}

    def text(self) -> str:
        """The available metrics, a line each."""
        figures = self.figures().items()
        return "\n".join(f"{name} {f'{value:.4g}' if isinstance(value, float) else value}" for name, value in figures)


@dataclass(frozen=True, repr=False)
class ClassifierMetrics(Metrics):
    """Metrics of a classifier's predictions.

    Attributes:
        counts: number of rows by (label, prediction).
        log_loss: mean of -log(probability of the label), in nats; None without probabilities.
        auc: area under the ROC curve; None unless there are exactly two classes, each with rows.
        ignored: number of rows, tokens or pixels left out: their label is the loss's ``ignore_index``, or of tokens no
            class.
    """

    _names = ("accuracy", "macro_f1", "log_loss", "auc", "rows", "ignored")

    counts: Counts
    log_loss: float | None = None
    auc: float | None = None
    ignored: int = 0

    @property
    def rows(self) -> int:
        """Number of rows with a label that is not ignored."""
        return sum(self.counts.values())

    @property
    def accuracy(self) -> float:
        """The share of rows whose prediction is the label."""
        return self._right / max(self.rows, 1)

    @property
    def macro_f1(self) -> float:
        """Mean of 2 TP / (2 TP + FP + FN) over the classes that occur as a label or a prediction."""
        occurrences = Counter[int]()  # true positives count twice
        for (label, prediction), number in self.counts.items():
            occurrences[label] += number
            occurrences[prediction] += number
        scores = [2 * self.counts.get((index, index), 0) / number for index, number in occurrences.items()]
        return sum(scores) / max(len(scores), 1)

    @property
    def _right(self) -> int:
        return sum(number for (label, prediction), number in self.counts.items() if label == prediction)

    @property
    def _indices(self) -> list[int]:
        return sorted({*chain(*self.counts)})

    def figures(self) -> dict[str, Any]:
        """The metrics as JSON values; the confusion matrix has a row per label and a column per prediction."""
        indices = self._indices
        matrix = [[self.counts.get((label, prediction), 0) for prediction in indices] for label in indices]
        return super().figures() | {"confusion": {"classes": indices, "counts": matrix}}

    def text(self) -> str:
        """The available metrics and the confusion table."""
        metrics = {"macro F1": self.macro_f1, "log loss": self.log_loss, "AUC": self.auc}
        return self.scores(*(f"{name} {value:.4f}" for name, value in metrics.items() if value is not None))

    def scores(self, *metrics: str) -> str:
        """Accuracy, then the lines ``metrics`` and the confusion table."""
        ignored = f", {self.ignored} ignored" if self.ignored else ""
        first, indices = f"accuracy {self.accuracy:.4f} ({self._right} of {self.rows} rows{ignored})", self._indices
        if not 0 < len(indices) <= MOST_CLASSES:
            return "\n".join([f"{first}, {len(indices)} classes", *metrics])
        width = 2 + max(len(str(number)) for number in (*indices, *self.counts.values()))
        table: list[list[Any]] = [["", *indices]]
        table += ([label, *(self.counts.get((label, prediction), ".") for prediction in indices)] for label in indices)
        lines = ["".join(f"{cell:>{width}}" for cell in cells) for cells in table]
        heading = "confusion: a row for each label, a column for each prediction"
        return "\n".join([first, *metrics, "", heading, *lines])


@dataclass(frozen=True, repr=False)
class MultilabelMetrics(Metrics):
    """Metrics of independent labels, as scikit-learn computes them. A NaN prediction is wrong, and not positive.

    Attributes:
        rows: number of rows with labels.
        subset_accuracy: the share of rows whose labels are all predicted.
        accuracy: for each label, the share of rows with the right prediction.
        f1: for each label, 2 TP / (2 TP + FP + FN); 0 if it is neither true nor predicted in any row.
        micro_f1: the same of the counts of all labels together.
    """

    _names = ("subset_accuracy", "micro_f1", "macro_f1", "accuracy", "f1", "rows")

    rows: int
    subset_accuracy: float
    accuracy: list[float]
    f1: list[float]
    micro_f1: float

    @property
    def macro_f1(self) -> float:
        """Mean of ``f1`` over the labels."""
        return sum(self.f1) / len(self.f1)

    def text(self) -> str:
        """The metrics of all labels, and of each if they are few."""
        lines = [f"subset accuracy {self.subset_accuracy:.4f} ({self.rows} rows)"]
        lines += [f"micro F1 {self.micro_f1:.4f}", f"macro F1 {self.macro_f1:.4f}"]
        pairs = list(zip(self.accuracy, self.f1, strict=True)) if len(self.f1) <= MOST_CLASSES else []
        lines += [f"label {index}: accuracy {right:.4f}, F1 {f1:.4f}" for index, (right, f1) in enumerate(pairs)]
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class RegressorMetrics(Metrics):
    """Metrics of a regressor's predictions.

    Attributes:
        rows: number of rows with a label.
        rmse: root mean squared error.
        mae: mean absolute error.
        r2: 1 - squared error / squared deviation of the labels from their mean; None if all labels are equal.
    """

    _names = ("rmse", "mae", "r2", "rows")

    rows: int
    rmse: float
    mae: float
    r2: float | None

    def text(self) -> str:
        """The available metrics."""
        r2 = "" if self.r2 is None else f"\nR2 {self.r2:.4f}"
        return f"root mean squared error {self.rmse:.4g} ({self.rows} rows)\nmean absolute error {self.mae:.4g}{r2}"


@dataclass(frozen=True, repr=False)
class LossMetrics(Metrics):
    """The loss and the metrics of a ``TorchEstimator``'s model, as training computes them; each row weighs 1.

    Attributes:
        loss: the loss of all rows.
        metrics: the values of the estimator's ``metrics``, by name.
        rows: number of rows with a label.
    """

    loss: float
    metrics: dict[str, Any]
    rows: int

    def figures(self) -> dict[str, Any]:
        """The loss, the metrics and the number of rows."""
        return {"loss": self.loss, **self.metrics, "rows": self.rows}


def finite(figures: Any) -> Any:
    """Nested figures with None in place of NaN and infinity, which JSON lacks."""
    if isinstance(figures, dict):
        return {name: finite(value) for name, value in figures.items()}
    return None if isinstance(figures, float) and not math.isfinite(figures) else figures


def check_label(rows: DataFrame, label: str) -> None:
    """Raise ``InvalidInput`` if the label column is missing or not numeric."""
    if label not in rows.columns:
        raise InvalidInput(f"there is no label column {label!r}; the rows have {listed(rows.columns)}.")
    kind = rows.schema[label].dataType
    if not isinstance(kind, NumericType | BooleanType):
        raise InvalidInput(f"the label {label} is of type {kind.simpleString()}; expected numbers.")


def measure(
    predictions: DataFrame, label: str, columns: OutputColumns, *, classes: bool | None = None
) -> ClassifierMetrics | RegressorMetrics:
    """Compute all metrics of the model's kind over the rows that have a label.

    Args:
        predictions: rows with the model's columns.
        label: the label column.
        columns: that the model writes; a classifier's metrics leave out the label that it ignores, and count its rows.
        classes: whether the model is a classifier; default: if it writes a classifier's columns.
    """
    classes = columns.of_classifier(predictions) if classes is None else classes
    check_label(predictions, label)
    if not isinstance(predictions.schema[columns.prediction].dataType, NumericType):
        raise InvalidInput(f"{columns.prediction} is the model's raw output, which cannot be compared with {label}.")
    measured = (_classes if classes else _numbers)(predictions.where(col(label).isNotNull()), label, columns)
    if not measured.rows:
        raise InvalidInput(f"no row has a label in the column {label}; expected some.")
    return measured


def measure_labels(predictions: DataFrame, label: str | list[str], columns: OutputColumns) -> MultilabelMetrics:
    """Compute the metrics of independent labels, in an array column or several columns, over the rows that have them.

    Raises:
        InvalidInput: a label column is missing, a label is neither 0 nor 1, or no row has labels.
    """
    names = [label] if isinstance(label, str) else label
    arrays = [_doubles(predictions, name) for name in names]
    present = [col(name).isNotNull() for name in names]
    true, predicted = F.concat(*arrays).alias("true"), col(columns.prediction).alias("predicted")
    rows = predictions.where(reduce(and_, present)).select(true, predicted)
    exact = (F.col("true") == F.col("predicted")).alias("exact")
    pairs = rows.select(exact, F.posexplode(F.arrays_zip("true", "predicted")).alias("label", "pair"))
    true, predicted = F.col("pair.true"), F.col("pair.predicted")
    binary = F.coalesce(true.isin(0.0, 1.0) & predicted.isNotNull(), F.lit(False))
    counted = {
        "rows": F.count("*"),
        "exact": F.count_if("exact"),
        "binary": F.count_if(binary),
        "correct": F.count_if(true == predicted),
        "both": F.count_if((true == 1) & (predicted == 1)),
        "positive": F.count_if(true == 1) + F.count_if(predicted == 1),
    }
    counts = pairs.groupBy("label").agg(*(count.alias(name) for name, count in counted.items())).orderBy("label")
    figures = counts.collect()
    if not figures:
        raise InvalidInput(f"no row has labels in {listed(names)}; expected some.")
    if any(row["binary"] < figures[0]["rows"] for row in figures):
        raise InvalidInput(f"labels of {listed(names)} are not 0 or 1, or not as many as predictions; expected both.")
    both, positive = ([row[name] for row in figures] for name in ("both", "positive"))
    return MultilabelMetrics(
        figures[0]["rows"],
        figures[0]["exact"] / figures[0]["rows"],
        [row["correct"] / row["rows"] for row in figures],
        [2 * pair / max(number, 1) for pair, number in zip(both, positive, strict=True)],
        2 * sum(both) / max(sum(positive), 1),
    )


def measure_tokens(predictions: DataFrame, label: str, columns: OutputColumns, classes: int) -> ClassifierMetrics:
    """Compute the metrics of the classes of tokens or pixels, over the labels from 0 to ``classes - 1`` that count.

    Raises:
        InvalidInput: a row has another number of labels than of predictions, the prediction of such a label is NaN, or
            there is no such label.
    """
    true = _doubles(predictions, label).alias("true")
    rows = predictions.where(col(label).isNotNull()).select(true, _doubles(predictions, columns.prediction).alias("p"))
    pairs = rows.select(F.explode(F.arrays_zip("true", "p")).alias("pair")).groupBy("pair.true", "pair.p").count()
    every = [tuple(row) for row in pairs.collect()]
    counted = [row for row in every if row[0] is None or (0 <= row[0] < classes and row[0] != columns.ignored)]
    if any(predicted is None or true is None or math.isnan(predicted) for true, predicted, _ in counted):
        raise InvalidInput(
            f"rows of {label} have another number of labels than of predictions, nulls, or predictions that are NaN; "
            "expected a label and a class for each token or pixel."
        )
    counts = {(int(true), int(predicted)): number for true, predicted, number in counted}
    if not counts:
        raise InvalidInput(f"no row has a label from 0 to {classes - 1} in the column {label}; expected some.")
    return ClassifierMetrics(counts, ignored=sum(row[-1] for row in every) - sum(counts.values()))


def _counted(groups: Iterable[Any], ignored: int | None) -> tuple[Counts, int]:
    """The counts of groups (label, prediction, number, ...) without the ignored label, and the rows of that label."""
    counts = {(true, predicted): number for true, predicted, number, *_ in groups}
    counted = {pair: number for pair, number in counts.items() if pair[0] != ignored}
    return counted, sum(counts.values()) - sum(counted.values())


def _doubles(rows: DataFrame, name: str) -> Column:
    if name not in rows.columns:
        raise InvalidInput(f"there is no label column {name!r}; the rows have {listed(rows.columns)}.")
    kind, values = rows.schema[name].dataType, col(name)
    if isinstance(kind, VECTORS):
        return vector_to_array(values)
    if isinstance(kind, ArrayType):
        while isinstance(kind.elementType, ArrayType):
            kind, values = kind.elementType, F.flatten(values)
        kind = kind.elementType
    else:
        values = F.array(values)
    if not isinstance(kind, NumericType | BooleanType):
        raise InvalidInput(f"the label {name} has values of type {kind.simpleString()}; expected numbers.")
    return values.cast("array<double>")


def _classes(rows: DataFrame, label: str, columns: OutputColumns) -> ClassifierMetrics:
    true, predicted = col(label).cast("int").alias("label"), col(columns.prediction).cast("int").alias("prediction")
    probability = columns.probability
    if probability is None or probability not in rows.columns:
        counts, ignored = _counted(rows.groupBy(true, predicted).count().collect(), columns.ignored)
        return ClassifierMetrics(counts, ignored=ignored)
    scored = rows.select(true, predicted, col(probability).alias("probability")).persist()  # two passes read it
    try:
        chance = F.get(vector_to_array(F.col("probability")), F.col("label"))  # null for an unknown label
        surprise = -F.log(F.greatest(chance, F.lit(_LEAST)))
        sums = scored.groupBy("label", "prediction").agg(F.count("*"), F.sum(surprise)).collect()
        counts, ignored = _counted(sums, columns.ignored)
        loss = math.fsum(row[-1] for row in sums if row[0] != columns.ignored) / max(sum(counts.values()), 1)
        auc = _auc(scored.where("label in (0, 1)")) if {index for index, _ in counts} == {0, 1} else None
        return ClassifierMetrics(counts, loss, auc, ignored)
    finally:
        scored.unpersist()


def _auc(rows: DataFrame) -> float | None:
    if len(rows.head(1)[0]["probability"]) != 2:
        return None
    labelled = rows.withColumn("label", F.col("label").cast("double"))
    evaluator = BinaryClassificationEvaluator(rawPredictionCol="probability", labelCol="label", numBins=0)
    return float(evaluator.evaluate(labelled))


def _numbers(rows: DataFrame, label: str, columns: OutputColumns) -> RegressorMetrics:
    true = col(label).cast("double")
    error = col(columns.prediction) - true
    figures = rows.agg(F.count("*"), F.avg(error * error), F.avg(F.abs(error)), F.var_pop(true))
    [(number, squared, absolute, spread)] = figures.collect()
    if not number:
        return RegressorMetrics(0, 0.0, 0.0, None)
    return RegressorMetrics(number, math.sqrt(squared), absolute, 1 - squared / spread if spread else None)
