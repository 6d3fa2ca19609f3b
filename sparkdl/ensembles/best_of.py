"""Model selection by cross-validation: the best of several candidates.

M. Stone, Cross-validatory choice and assessment of statistical predictions, JRSS B 36(2), 1974. With the folds and
members of ``folds.py``, where h_(j, k) is candidate j trained without the rows of fold k,

    metric_(j, k) = evaluator(h_(j, k) on the rows of fold k)          metric_j = mean over k of metric_(j, k)
    best          = argmax_j metric_j, or argmin_j where smaller is better; the first of equals

The result is the best candidate, trained on all rows. A NaN metric loses to every number.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pyspark.ml import Estimator, Model, Pipeline
from pyspark.ml.evaluation import Evaluator
from pyspark.sql import DataFrame

from sparkdl.cluster.shutdown import stop_requested, stopped
from sparkdl.ensembles.base_learner import check_column, check_one_class, column, value_of
from sparkdl.ensembles.declarations import BestOfParams
from sparkdl.ensembles.fitted import FittedEnsemble, evaluate
from sparkdl.ensembles.folds import Folds
from sparkdl.ensembles.members.fit import fit_members
from sparkdl.ensembles.members.member import summary
from sparkdl.ensembles.params import EnsembleParams
from sparkdl.errors import InvalidInput
from sparkdl.ml.evaluation import Metrics
from sparkdl.ml.model import TorchModel
from sparkdl.ml.report import Report
from sparkdl.ml.trials.driver_threads import in_threads


class BestOfModel(FittedEnsemble):
    """The model of the best candidate.

    ``BestOf.fit`` returns it. ``transform`` runs ``bestModel``.

    Args:
        bestModel: the best candidate, trained on all rows.
        bestIndex: index of the best candidate.
        avgMetrics: mean metric of each candidate over its folds.
        foldMetrics: metric of each fold, by candidate.
        history: a row per candidate.
        report: ``seconds``, and the indices of the members ``trained`` and ``restored``.
    """

    def __init__(
        self,
        bestModel: Model,
        *,
        bestIndex: int = 0,
        avgMetrics: list[float] | None = None,
        foldMetrics: list[list[float]] | None = None,
        history: list[dict[str, Any]] | None = None,
        report: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.bestModel, self.bestIndex = bestModel, bestIndex
        self.avgMetrics, self.foldMetrics = avgMetrics or [], foldMetrics or []
        self.history, self.report = history or [], Report.of(report, history)

    _folders: ClassVar[Mapping[str, str]] = {"bestModel": "best"}
    saved_fields: ClassVar[tuple[str, ...]] = ("bestIndex", "avgMetrics", "foldMetrics", "history", "report")

    def predict(self, data: Any) -> Any:
        """Predict by the best model, as its ``predict`` if it has one, else as ``FittedEnsemble.predict``."""
        best = self.bestModel
        return best.predict(data) if isinstance(best, TorchModel | FittedEnsemble) else super().predict(data)

    def _measured(self, dataset: DataFrame, label: Any) -> Metrics:
        return evaluate(self.bestModel, dataset, label)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        return self.bestModel.transform(dataset)


class BestOf(BestOfParams, EnsembleParams, Estimator[BestOfModel]):
    """Selects the best of several candidates by cross-validation.

    ``fit`` trains each candidate once per fold, without the fold's rows, and evaluates it on them. It then trains the
    best candidate on all rows: ``candidates * numFolds + 1`` fits.

    Raises:
        InvalidInput: a Param has an invalid value.
    """

    def _fit(self, dataset: DataFrame) -> BestOfModel:
        start = time.monotonic()
        candidates, evaluator = self._checked(dataset)
        folds = Folds(self.getNumFolds(), self.getSeed())
        with self.running(dataset) as (rows, plan):
            count, _ = folds.count_rows(rows)
            first = fit_members(folds.members(candidates), rows, plan)
            metrics = _metrics(first.models, rows, folds, evaluator, plan.parallelism)
            means = [math.fsum(values) / len(values) for values in metrics]
            best = _best(candidates, means, evaluator.isLargerBetter())
            second = fit_members([folds.member(candidates, best)], rows, plan)
        model = BestOfModel(
            second.models[0],
            bestIndex=best,
            avgMetrics=means,
            foldMetrics=metrics,
            history=[
                {"candidate": index, "uid": candidate.uid, "metric": means[index], "best": index == best}
                for index, candidate in enumerate(candidates)
            ],
            report={"seconds": time.monotonic() - start, "rows": count, **summary(first, second)},
        )
        if value_of(second.models[0], "labelCol") is None:
            model._set(labelCol=column(evaluator, "labelCol"))
        return plan.reported(model)._resetUid(self.uid)

    def _checked(self, dataset: DataFrame) -> tuple[list[Estimator[Any]], Evaluator]:
        candidates, evaluator = self.getCandidates(), self.getEvaluator()
        if not candidates:
            raise InvalidInput(
                f"candidates is {candidates}; expected at least one estimator, as BestOf(candidates=[...])."
            )
        if evaluator is None:
            raise InvalidInput(
                "evaluator is not set; expected one of pyspark.ml.evaluation, as "
                "BestOf(evaluator=RegressionEvaluator())."
            )
        check_one_class(candidates, dataset)
        label = column(evaluator, "labelCol")
        # Pipelines may create their own label column.
        pipelines = any(isinstance(candidate, Pipeline) for candidate in candidates)
        if label is not None and not pipelines:
            check_column(dataset, "labelCol of the evaluator", label)
        for candidate in candidates:
            _refuse_unread(candidate, evaluator, dataset)
        return candidates, evaluator


def _metrics(
    models: Sequence[Model], rows: DataFrame, folds: Folds, evaluator: Evaluator, parallelism: int
) -> list[list[float]]:
    def metric(index: int) -> float:
        if stop_requested() is not None:
            raise stopped("had not evaluated all candidates")
        return float(evaluator.evaluate(models[index].transform(folds.held_out(rows, index % folds.count))))

    metrics = list[float]()
    for result in in_threads(rows.sparkSession, metric, range(len(models)), parallelism):
        if isinstance(result, BaseException):
            raise result
        metrics.append(result)
    return [metrics[start : start + folds.count] for start in range(0, len(metrics), folds.count)]


def _best(candidates: Sequence[Estimator[Any]], means: Sequence[float], larger: bool) -> int:
    numbers = [index for index, mean in enumerate(means) if not math.isnan(mean)]
    lost = [f"{index} ({candidate.uid})" for index, candidate in enumerate(candidates) if index not in numbers]
    if not numbers:
        raise InvalidInput(f"the metric of every candidate is NaN: {', '.join(lost)}; expected at least one number.")
    if lost:
        warnings.warn(f"the metric is NaN, which loses to every number, for candidate {', '.join(lost)}.", stacklevel=4)
    return max(numbers, key=lambda index: means[index] if larger else -means[index])


def _refuse_unread(candidate: Estimator[Any], evaluator: Evaluator, dataset: DataFrame) -> None:
    label, expected = column(candidate, "labelCol"), column(evaluator, "labelCol")
    if label is not None and expected is not None and label != expected and label in dataset.columns:
        raise InvalidInput(
            f"labelCol of the candidate {candidate.uid} is {label!r}, but the evaluator has {expected!r}; expected the "
            "same."
        )
    written = [column(candidate, name) for name in ("predictionCol", "rawPredictionCol", "probabilityCol")]
    for name in ("predictionCol", "rawPredictionCol"):
        read = column(evaluator, name)
        if read is not None and any(written) and read not in [*written, *dataset.columns]:
            raise InvalidInput(
                f"{name} of the evaluator is {read!r}, which the candidate {candidate.uid} does not write; it writes "
                f"{', '.join(repr(output) for output in written if output)}."
            )
