"""SAMME: AdaBoost for any number of classes.

J. Zhu, H. Zou, S. Rosset and T. Hastie, Multi-class AdaBoost, Statistics and Its Interface 2, 2009. With K classes,
the users' weights u_i and a learning rate nu, members T_m train in sequence on rows of weight w_i:

    w_i     = u_i exp(S_i),   S_i = sum_{j<m} alpha_j 1[T_j(x_i) != c_i]
    err_m   = sum_i w_i 1[T_m(x_i) != c_i] / sum_i w_i
    alpha_m = nu (log((1 - err_m) / err_m) + log(K - 1))

    prediction(x) = argmax_k sum_m alpha_m 1[T_m(x) = k]

With K = 2 this is AdaBoost.M1 (Freund and Schapire, 1997). As in scikit-learn, a member with err_m = 0 gets the weight
1 and is the last one. A member with err_m >= 1 - 1/K, no better than chance, is discarded and ends the boosting.

Weights are stored as logarithms, L_i = log(u_i) + S_i, and summed in units of the largest, e^P with P = max_i L_i, so
they cannot overflow. The sums are of integers, in units of 2^-53: bit-identical for any partitioning of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.ml import Model
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from sparkdl.ensembles.boosting.running_sums import SUM, TERM, MemberResult, RunningSums
from sparkdl.ensembles.target import Target, not_finite
from sparkdl.errors import InvalidInput
from sparkdl.spark.columns import col
from sparkdl.spark.exact_sums import whole_sum

WEIGHT = "sparkdl weight"

_NOTHING = float("-inf")  # logarithm of weight 0
_UNITS = 2.0**53  # of the sums, per weight of e^P


@dataclass(frozen=True)
class Samme:
    """The equations of SAMME for ``K`` classes and the learning rate ``nu``."""

    classes: int
    rate: float = 1.0

    @property
    def chance(self) -> float:
        """Error of a random guess, ``1 - 1/K``."""
        return 1.0 - 1.0 / self.classes

    def by_chance(self, wrong: int, right: int) -> bool:
        """Whether ``err_m >= 1 - 1/K``, exactly, by the total weights of rows: ``1 - 1/K`` itself is no double."""
        return wrong * self.classes >= (wrong + right) * (self.classes - 1)

    def alpha(self, error: float) -> float:
        """Weight ``alpha_m`` of a member with the error ``err_m``, in [0, 1 - 1/K)."""
        if error == 0.0:
            return 1.0
        return self.rate * (math.log((1.0 - error) / error) + math.log(self.classes - 1.0))


def classes_of(dataset: DataFrame, target: Target) -> tuple[int, int]:
    """Number of classes among the rows of a weight, ``K``, and the largest label; Spark computes the rows once.

    Raises:
        InvalidInput: a label or weight is invalid, or there are fewer than two classes.
    """
    labels, weights = target.labels, target.weights
    index = ~not_finite(labels) & (labels >= 0) & (labels == F.floor(labels))
    row = target.aggregates(
        dataset,
        target.counts & ~index,
        "whole number of at least 0",
        present=F.count_distinct(F.when(target.counts & (weights > 0), labels)),
        highest=F.max(F.when(target.counts, labels)),
    )
    if row["present"] < 2:
        raise InvalidInput(
            f"the rows of weight above 0 have {row['present']} classes in {target.label!r}; boosting expects two or "
            "more."
        )
    return row["present"], int(row["highest"])


class SammeRounds:
    """Rounds of SAMME on rows with ids for ``K`` classes and the learning rate ``nu``."""

    columns: Mapping[str, str] = {"weightCol": WEIGHT}

    def __init__(self, rows: DataFrame, target: Target, classes: int, rate: float, prediction: str) -> None:
        weights, labels = target.weights, target.labels
        self.arithmetic = Samme(classes, rate)
        self._target = target
        # Spark's logarithm of 0 is null.
        start = F.when(weights > 0, F.log(weights)).otherwise(F.lit(_NOTHING))
        self.running = RunningSums(rows, start, F.coalesce((col(prediction) != labels).cast("double"), F.lit(1.0)))
        try:
            self.running.retry_on_lost_blocks(self._begin)
        except BaseException:
            self.running.close()  # the caller has no object to close yet
            raise

    def member_rows(self) -> DataFrame:
        """The rows of the next member, with weights of mean 1 in ``WEIGHT``."""
        return self.running.frame.withColumn(WEIGHT, self._units() / F.lit(self._mean)).drop(SUM)

    def evaluate_member(self, index: int, model: Model) -> MemberResult:
        """Compute the weight of a member.

        Raises:
            InvalidInput: the first member is no better than chance.
        """
        counts, missed = self._target.counts, col(TERM) == 1.0
        sums = []
        for name, rows in (("wrong", counts & missed), ("right", counts & ~missed)):
            sums.append(whole_sum(F.when(rows, self._units() * _UNITS)).alias(name))
            sums.append(F.max(F.when(rows, col(SUM))).alias(f"{name} peak"))
        (totals,) = self.running.predict(model).agg(*sums).collect()
        wrong, right = int(totals["wrong"] or 0), int(totals["right"] or 0)
        error = wrong / (wrong + right)  # integer division rounds to the nearest double
        row = {"member": index, "error": error}
        if self.arithmetic.by_chance(wrong, right):
            if index == 0:
                raise InvalidInput(
                    f"the first member has a weighted error of {error:.3f}, and chance gives "
                    f"{self.arithmetic.chance:.3f}; expected a base that is better than chance."
                )
            return MemberResult(None, row | {"weight": 0.0}, "a member no better than chance")
        alpha = self.arithmetic.alpha(error)
        self.running.add(model, alpha)
        row |= {"weight": alpha}
        if wrong == 0:
            return MemberResult(alpha, row, "a member without an error")
        self._reweigh(totals, alpha)
        return MemberResult(alpha, row)

    def _begin(self) -> None:
        counts, frame = self._target.counts, self.running.frame
        ((peak, rows),) = frame.agg(F.max(F.when(counts, col(SUM))), F.count_if(counts)).collect()
        self._peak, self._rows = float(peak), int(rows)
        ((total,),) = frame.agg(whole_sum(F.when(counts, self._units() * _UNITS))).collect()
        self._mean = int(total or 0) / _UNITS / self._rows

    def _units(self) -> Column:
        return F.exp(col(SUM) - F.lit(self._peak))

    def _reweigh(self, totals: Row, alpha: float) -> None:
        wrong, right = (int(totals[name] or 0) / _UNITS for name in ("wrong", "right"))
        highest = _NOTHING if totals["right peak"] is None else float(totals["right peak"])
        peak = max(highest, float(totals["wrong peak"]) + alpha)
        total = right * math.exp(self._peak - peak) + wrong * math.exp(self._peak + alpha - peak)
        self._peak, self._mean = peak, total / self._rows
