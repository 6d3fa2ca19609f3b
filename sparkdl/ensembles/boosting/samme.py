"""SAMME: AdaBoost for any number of classes.

J. Zhu, H. Zou, S. Rosset and T. Hastie, Multi-class AdaBoost, Statistics and Its Interface 2, 2009. With K classes,
the users' weights u_i and a learning rate nu, members T_m are trained one after the other on rows of weight w_i:

    w_i     = u_i exp(S_i),   S_i = sum_{j<m} alpha_j 1[T_j(x_i) != c_i]
    err_m   = sum_i w_i 1[T_m(x_i) != c_i] / sum_i w_i
    alpha_m = nu (log((1 - err_m) / err_m) + log(K - 1))

and the prediction is the class of the largest sum of the alpha_m of those that predict it. With K = 2 it is AdaBoost.M1
(Freund and Schapire, 1997). As in scikit-learn, a member with err_m = 0 has the weight 1 and is the last one; one with
err_m >= 1 - 1/K, no better than chance, is discarded, and those before it are all there are.

Weights are held as logarithms, L_i = log(u_i) + S_i, and count in units of the largest, e^P with P = max_i L_i, so that
no number of members makes them overflow. The sums are exact (``exact.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.ml import Model
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from sparkdl.ensembles.boosting.exact_sums import as_float, fixed_sum
from sparkdl.ensembles.boosting.protocol import Verdict
from sparkdl.ensembles.boosting.running_sums import SUM, TERM, Running, Term
from sparkdl.ensembles.boosting.target import Target, counted, not_finite, refuse, weight_fault
from sparkdl.errors import InvalidInput
from sparkdl.spark.columns import named

WEIGHT = "sparkdl weight"

_NOTHING = float("-inf")  # the logarithm of no weight


@dataclass(frozen=True)
class Samme:
    """The arithmetic.

    Attributes:
        classes: ``K``, at least 2.
        rate: ``nu``, above 0.
    """

    classes: int
    rate: float = 1.0

    @property
    def chance(self) -> float:
        """The error of members that are no better than chance."""
        return 1.0 - 1.0 / self.classes

    def by_chance(self, wrong: int, right: int) -> bool:
        """Whether ``err_m >= 1 - 1/K``, to the last bit: ``1 - 1/K`` itself is no double.

        Args:
            wrong: the sum of the weights of rows that a member predicts wrong, in any units.
            right: that of all others, in the same.
        """
        return wrong * self.classes >= (wrong + right) * (self.classes - 1)

    def alpha(self, error: float) -> float:
        """The weight of a member.

        Args:
            error: ``err_m``, in [0, 1 - 1/K).
        """
        if error == 0.0:
            return 1.0
        return self.rate * (math.log((1.0 - error) / error) + math.log(self.classes - 1.0))


@dataclass(frozen=True)
class Classes:
    """What the labels are.

    Attributes:
        present: how many classes there are among the rows: ``K``.
        highest: the largest label.
        peak: the largest weight of the user's.
    """

    present: int
    highest: int
    peak: float


def classes_of(dataset: DataFrame, target: Target) -> Classes:
    """The classes of the rows, which are computed once for it.

    Raises:
        InvalidInput: labels are no class indices, weights no weights, or there is only one class.
    """
    labels, weights = target.labels, target.weights
    index = ~not_finite(labels) & (labels >= 0) & (labels == F.floor(labels))
    with_weight = target.counts & (weights > 0)
    fault, faulty = weight_fault(target)
    found = dataset.agg(
        counted(target.counts & ~index).alias("labels"),
        faulty.alias("weights"),
        F.count_distinct(F.when(with_weight, labels)).alias("present"),
        F.max(F.when(target.counts, labels)).alias("highest"),
        F.max(F.when(target.counts, weights)).alias("peak"),
    ).collect()[0]
    refuse({f"a label in {target.label!r} that is no whole number of at least 0": found["labels"]})
    refuse({fault: found["weights"]})
    if found["present"] < 2:
        raise InvalidInput(
            f"the rows of weight above 0 have {found['present']} classes in {target.label!r}; boosting expects two or "
            "more."
        )
    return Classes(found["present"], int(found["highest"]), float(found["peak"]))


class SammeRounds:
    """One round after the other.

    Args:
        rows: with ids.
        target: their labels and weights.
        classes: what ``classes_of`` has found.
        rate: ``nu``.
        prediction: the column that members write.
    """

    columns: Mapping[str, str] = {"weightCol": WEIGHT}

    def __init__(self, rows: DataFrame, target: Target, classes: Classes, rate: float, prediction: str) -> None:
        weights, labels = target.weights, target.labels
        self.arithmetic = Samme(classes.present, rate)
        self._target = target
        # Spark's logarithm of 0 is null.
        start = F.when(weights > 0, F.log(weights)).otherwise(F.lit(_NOTHING))
        wrong = Term(prediction, lambda found: F.coalesce((found != labels).cast("double"), F.lit(1.0)))
        self.running = Running(rows, start, wrong)
        self._peak, self._mean = 0.0, 1.0
        try:
            self.running.steadily(self._begin)
        except BaseException:
            self.running.close()  # nobody else can: there are no rounds yet
            raise

    def member_rows(self) -> DataFrame:
        """The rows for the next member, with weights in ``WEIGHT`` whose mean is 1."""
        return self.running.frame.withColumn(WEIGHT, self._units() / F.lit(self._mean)).drop(SUM)

    def judge(self, index: int, model: Model) -> Verdict:
        """Weigh a member.

        Raises:
            InvalidInput: it is the first, and no better than chance.
        """
        (found,) = self.running.look(model).agg(*self._sums()).collect()
        wrong, right = int(found["wrong"] or 0), int(found["right"] or 0)
        error = wrong / (wrong + right)  # of integers: the double that is nearest
        if self.arithmetic.by_chance(wrong, right):
            return self._discarded(index, error)
        alpha = self.arithmetic.alpha(error)
        self.running.add(model, alpha)
        row = {"member": index, "error": error, "weight": alpha}
        if wrong == 0:
            return Verdict(alpha, row, "a member without an error")
        self._reweigh(found, alpha)
        return Verdict(alpha, row)

    def _discarded(self, index: int, error: float) -> Verdict:
        chance = self.arithmetic.chance
        if index == 0:
            raise InvalidInput(
                f"the first member has a weighted error of {error:.3f}, and chance gives {chance:.3f}; expected a base "
                "that is better than chance."
            )
        return Verdict(None, {"member": index, "error": error, "weight": 0.0}, "a member no better than chance")

    def _begin(self) -> None:
        counts, held = self._target.counts, named(SUM)
        frame = self.running.frame
        ((peak, rows),) = frame.agg(F.max(F.when(counts, held)), counted(counts)).collect()
        self._peak, self._rows = float(peak), int(rows)
        ((total,),) = frame.agg(fixed_sum(F.when(counts, self._units()))).collect()
        self._mean = as_float(total) / self._rows

    def _units(self) -> Column:
        """The weights, in units of the largest."""
        return F.exp(named(SUM) - F.lit(self._peak))

    def _sums(self) -> list[Column]:
        counts, missed, held = self._target.counts, named(TERM) == 1.0, named(SUM)
        which = {"wrong": counts & missed, "right": counts & ~missed}
        return [
            *(fixed_sum(F.when(rows, self._units())).alias(name) for name, rows in which.items()),
            *(F.max(F.when(rows, held)).alias(f"{name} peak") for name, rows in which.items()),
        ]

    def _reweigh(self, found: Row, alpha: float) -> None:
        """What the weights' peak and mean are, now that the wrong rows' are ``e^alpha`` times what they were."""
        wrong, right = as_float(found["wrong"]), as_float(found["right"])
        highest = _NOTHING if found["right peak"] is None else float(found["right peak"])
        peak = max(highest, float(found["wrong peak"]) + alpha)
        total = right * math.exp(self._peak - peak) + wrong * math.exp(self._peak + alpha - peak)
        self._peak, self._mean = peak, total / self._rows
