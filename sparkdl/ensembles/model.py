"""Several models as one: their votes, their mean, or their sum.

With members m = 1 ... M, weights a_m, classes k and p_m(k) the probability that member m gives to class k,

    soft    raw_k = sum_m a_m p_m(k)                                       classifiers with probabilities
    hard    raw_k = sum_m a_m 1[member m predicts k]                       any classifiers
    mean    prediction = sum_m a_m h_m / sum_m a_m                         numbers, and arrays of them
    sum     prediction = intercept + sum_m a_m h_m                         numbers

    probability_k = raw_k / sum_j raw_j          prediction = argmax_k probability_k (/ threshold_k)

Disagreement is how far members are apart: of classes the share of the weight of those that predict another class than
the ensemble, of numbers the weighted standard deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pyspark.ml import Model
from pyspark.sql import DataFrame

from sparkdl.ml.params import CheckedParams

Rule = Literal["soft", "hard", "mean", "sum"]


class EnsembleModel(CheckedParams, Model):
    """Several models as one.

    Args:
        models: the members; their input columns are their own.
        rule: how they are combined.
        weights: of the members, finite and at least 0, for ``"sum"`` any finite ones; None for 1 each.
        intercept: of ``"sum"``.
        numClasses: of classifiers; None asks the members.
        history: a row per member.
        report: what the fit took.
    """

    def __init__(
        self,
        models: Sequence[Model],
        *,
        rule: Rule,
        weights: Sequence[float] | None = None,
        intercept: float = 0.0,
        numClasses: int | None = None,
        history: list[dict[str, Any]] | None = None,
        report: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.models = list(models)
        self.rule, self.weights, self.intercept, self.numClasses = rule, weights, intercept, numClasses
        self.history, self.report = history or [], report or {}

    def _transform(self, dataset: DataFrame) -> DataFrame:
        raise NotImplementedError
