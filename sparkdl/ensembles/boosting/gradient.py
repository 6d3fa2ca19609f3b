"""Gradient boosting of the squared loss.

J. Friedman, Greedy function approximation: a gradient boosting machine, Annals of Statistics 29(5), 2001. With the
users' weights w_i and a learning rate nu,

    F_0  = sum_i w_i y_i / sum_i w_i
    r_i  = y_i - F_{m-1}(x_i)                    the negative gradient of (y_i - F)^2 / 2
    F_m  = F_{m-1} + nu h_m                      h_m is trained on the labels r_i
    loss = sum_i w_i (y_i - F_m(x_i))^2 / sum_i w_i

Other losses need an optimal factor per leaf; for the squared loss the regressor already predicts it. The sums are exact
(``sparkdl.spark.exact_sums``). Early stopping monitors the loss on the validation rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.ml import Model
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl.ensembles.boosting.running_sums import SUM, TERM, MemberResult, RunningSums
from sparkdl.ensembles.target import Target, not_finite
from sparkdl.errors import InvalidInput, SparkdlError
from sparkdl.spark.columns import col
from sparkdl.spark.exact_sums import exact_sums
from sparkdl.training.callbacks.early_stopping import EarlyStopping

RESIDUAL = "sparkdl residual"


@dataclass(frozen=True)
class InitialPrediction:
    """``F_0``, and the total weights of the training rows and the validation rows."""

    mean: float
    weight: float
    validation_weight: float


def start_of(dataset: DataFrame, target: Target) -> InitialPrediction:
    """Compute the start of boosting; Spark computes the rows twice.

    Raises:
        InvalidInput: a label or weight is invalid, or no weight is above 0.
    """
    labels, weights = target.labels, target.weights
    target.aggregates(dataset, (target.counts | target.valid) & not_finite(labels), "finite number")
    sums = exact_sums(
        dataset,
        {
            "weight": F.when(target.counts, weights),
            "weighted": F.when(target.counts, weights * labels),
            "held": F.when(target.valid, weights),
        },
    )
    if not sums["weight"]:
        raise InvalidInput("no training row has a weight above 0; expected at least one.")
    if target.validation is not None and not sums["held"]:
        raise InvalidInput(f"no validation row of {target.validation!r} has a weight above 0; expected at least one.")
    return InitialPrediction(sums["weighted"] / sums["weight"], sums["weight"], sums["held"])


class GradientRounds:
    """Rounds of gradient boosting on rows with ids; ``start`` is the result of ``start_of``, ``rate`` is ``nu``."""

    columns: Mapping[str, str] = {"labelCol": RESIDUAL}

    def __init__(
        self,
        rows: DataFrame,
        target: Target,
        start: InitialPrediction,
        rate: float,
        *,
        prediction: str,
        stopping: EarlyStopping,
    ) -> None:
        term = F.coalesce(col(prediction).cast("double"), F.lit(math.nan))
        self.running = RunningSums(rows, F.lit(start.mean), term)
        self.stopping = stopping
        self._target, self._start, self._rate = target, start, rate

    def member_rows(self) -> DataFrame:
        """The training rows of the next member, with the residuals ``r_i`` in ``RESIDUAL``."""
        rows = self.running.frame.where(~self._target.valid)
        return rows.withColumn(RESIDUAL, self._target.labels - col(SUM)).drop(SUM)

    def evaluate_member(self, index: int, model: Model) -> MemberResult:
        """Add a member and compute the losses.

        Raises:
            SparkdlError: a prediction or its squared error is not finite.
        """
        rows, target = self.running.predict(model), self._target
        left = target.labels - (col(SUM) + F.lit(self._rate) * col(TERM))
        squares = target.weights * left * left
        losses = {"loss": F.when(target.counts, squares)}
        if target.validation is not None:
            losses["valid_loss"] = F.when(target.valid, squares)
        sums = exact_sums(rows, losses)
        if not all(map(math.isfinite, sums.values())):
            raise SparkdlError(
                f"member {index} predicts numbers that are not finite, or too large to square; try a smaller "
                "learning rate of the base."
            )
        self.running.add(model, self._rate)
        row = {"member": index, "loss": sums["loss"] / self._start.weight, "weight": self._rate}
        if "valid_loss" in sums:
            row["valid_loss"] = sums["valid_loss"] / self._start.validation_weight
        over = "valid_loss" in row and self.stopping.after(index + 1, row["valid_loss"])
        return MemberResult(self._rate, row, "the loss on validation rows" if over else None)
