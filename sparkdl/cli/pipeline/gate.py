"""The gate: which models may be published, by metrics on the validation rows, and from which input."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.ml import PipelineModel
from pyspark.ml.evaluation import Evaluator
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import BooleanType

from sparkdl.cli.exit_codes import BadInput
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields, NonNegative


@dataclass(frozen=True, kw_only=True)
class MetricLimits(CheckedFields):
    """The values of a metric that pass.

    Args:
        margin: how much worse than the metric of the model in use its metric may be, on the same rows.
        least: the worst metric that passes, whatever is in use; if smaller is better, the largest.
    """

    margin: NonNegative = 0.0
    least: float | None = None

    def failure(self, value: float, in_use: float | None, *, larger: bool) -> str | None:
        """Why a model with this metric is rejected, or None; without a model in use, ``in_use`` is None."""
        sign, relation = (1.0, "<") if larger else (-1.0, ">")
        if math.isnan(value):
            return "it is NaN"
        if self.least is not None and sign * value < sign * self.least:
            return f"{value:.10g} {relation} {self.least:.10g}, the gate's least"
        if in_use is None or not sign * value < sign * in_use - self.margin:
            return None
        bound = f"{value:.10g} {relation} {in_use - sign * self.margin:.10g}"
        return f"{bound}: the model in use has {in_use:.10g}, the margin is {self.margin:.10g}"


@dataclass(frozen=True, kw_only=True)
class Metric(MetricLimits):
    """Another metric that has to pass.

    Args:
        evaluator: computes it.
        margin: how much worse than the metric of the model in use it may be.
        least: the worst metric that passes; if smaller is better, the largest.
    """

    evaluator: Evaluator


@dataclass(frozen=True, kw_only=True)
class Gate(MetricLimits):
    """Decides whether to train on the input, and whether to publish the new model.

    Args:
        margin: how much worse than the metric of the model in use the new model's may be, on the same rows.
        least: the worst metric that passes, whatever is in use; if smaller is better, the largest.
        compare: whether to evaluate the model in use; false if the rows lack columns that it needs.
        metrics: further metrics by name, which all have to pass, each with its evaluator, margin and least.
        checks: conditions on the cleaned rows by name, as aggregates of Spark SQL, such as "count(*) >= 1000".
    """

    compare: bool = True
    metrics: dict[str, Metric] = field(default_factory=dict)
    checks: dict[str, str] = field(default_factory=dict)

    def all_metrics(self, evaluator: Evaluator) -> dict[str, Metric]:
        """All metrics by name; the first is the evaluator's.

        Raises:
            InvalidInput: a further metric has the name of the first.
        """
        named = evaluator.hasParam("metricName") and evaluator.isDefined("metricName")
        name = str(evaluator.getOrDefault("metricName")) if named else type(evaluator).__name__
        if name in self.metrics:
            raise InvalidInput(f"gate.metrics has {name!r}, the name of the evaluator's metric; expected another name.")
        return {name: Metric(margin=self.margin, least=self.least, evaluator=evaluator), **self.metrics}

    def check(self, rows: DataFrame) -> None:
        """Evaluate the checks, in one pass.

        Raises:
            BadInput: a check is false or null, or names a missing column.
            InvalidInput: a check is no condition.
        """
        if not self.checks:
            return
        held = self.conditions(rows).first()
        failed = [f"{name!r} ({text})" for name, text in self.checks.items() if held is None or not held[name]]
        if failed:
            raise BadInput(f"the rows do not pass the gate's checks: {', '.join(failed)}.")

    def conditions(self, rows: DataFrame) -> DataFrame:
        """The values of the checks, which Spark analyzes at once and computes later; raises as ``check``."""
        try:
            values = rows.agg(*(sql.expr(text).alias(name) for name, text in self.checks.items()))
        except AnalysisException as error:
            reason = str(error).partition("\n")[0]
            raise BadInput(f"rows with the columns {', '.join(rows.columns)} cannot be checked: {reason}") from error
        for name, kind in ((column.name, column.dataType) for column in values.schema):
            if not isinstance(kind, BooleanType):
                raise InvalidInput(
                    f"gate.checks has {name!r}: {self.checks[name]}, which is of type {kind.simpleString()}; expected "
                    "a condition, such as count(*) >= 1000."
                )
        return values


def evaluate(
    metrics: dict[str, Metric], new: PipelineModel, in_use: PipelineModel | None, rows: DataFrame
) -> dict[str, dict[str, Any]]:
    """Evaluate the new model and the one in use on the same rows.

    Returns:
        By metric: ``value``, of the model in use ``in_use`` or None, whether it ``passed``, and else the ``reason``.
    """
    cached = rows.cache()
    try:
        scored, beside = new.transform(cached), None if in_use is None else in_use.transform(cached)
        results = {}
        for name, metric in metrics.items():
            value = float(metric.evaluator.evaluate(scored))
            value_in_use = None if beside is None else float(metric.evaluator.evaluate(beside))
            reason = metric.failure(value, value_in_use, larger=metric.evaluator.isLargerBetter())
            results[name] = {"value": value, "in_use": value_in_use, "passed": reason is None, "reason": reason}
        return results
    finally:
        cached.unpersist()
