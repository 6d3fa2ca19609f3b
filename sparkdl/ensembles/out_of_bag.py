"""Out-of-bag score: each training row is predicted by the members that did not draw it.

L. Breiman, Out-of-bag estimation, Technical Report, University of California, Berkeley, 1996. With the draws k_mi of
row i by member m, its label y_i and its weight w_i, from the base's ``weightCol``, else 1,

    O_i      = {m: k_mi = 0}
    o_i      = prediction of row i by the members in O_i, combined as in ``model.py``

    accuracy = sum_i w_i 1[o_i = y_i] / sum_i w_i                                  classifiers
    R2       = 1 - sum_i w_i (y_i - o_i)^2 / sum_i w_i (y_i - mean)^2              regressors
    mean     = sum_i w_i y_i / sum_i w_i

The sums run over the rows with w_i > 0 and a member in O_i. They leave out validation rows, which every member sees,
and labels that the loss ignores. Draws are functions of row ids, so they are computed again, also for stored members.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

from pyspark.ml import Estimator
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from sparkdl.cluster.shutdown import stop_requested, stopped
from sparkdl.ensembles.base_learner import kind_of, leaf
from sparkdl.ensembles.members.member import Member
from sparkdl.ensembles.model import EnsembleModel
from sparkdl.ensembles.resampling.validation_rows import with_validation_column
from sparkdl.ensembles.target import Target, target_of
from sparkdl.errors import InvalidInput
from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.spark.columns import ROW_ID, col
from sparkdl.spark.session import session_of

_PREDICTION = "sparkdl out-of-bag prediction"


def check_target(base: Estimator[Any], dataset: DataFrame) -> None:
    """Raise InvalidInput if the predictions of a base cannot be compared with the labels of the rows."""
    if kind_of(base) == "estimator":
        raise InvalidInput(
            f"oobScore is True, and the base is a {type(leaf(base)).__name__}, whose output may be anything; expected "
            "a classifier or a regressor, or oobScore=False."
        )
    target_of(base, dataset)


def out_of_bag_score(
    model: EnsembleModel, members: Sequence[Member], base: Estimator[Any], rows: DataFrame
) -> dict[str, Any]:
    """Report entries: ``oob_score`` and ``oob_rows``, the number of rows that it counts; one pass scores the rows.

    Args:
        model: the ensemble of the members.
        members: the members with their draws.
        base: the estimator of the members, with its own ``validationFraction``.
        rows: the training rows with their ids.

    Raises:
        InvalidInput: the members predict arrays.
        Stopped: the process received a stop request.
    """
    if stop_requested() is not None:
        raise stopped("had not computed the out-of-bag score")
    base, rows = with_validation_column(base, rows)
    target, voters = target_of(base, rows), [member.draw.out_of_bag(col(ROW_ID)) for member in members]
    counted = rows.where(target.counts & (target.weights > 0) & _has_label(base, target))
    with session_of(rows.sparkSession).described("sparkdl: compute the out-of-bag score"):
        mean = F.sum(target.weights * target.labels) / F.sum(target.weights)
        ((count, center),) = counted.agg(F.count("*"), mean).collect()
        predicted = counted.where(F.array_contains(F.array(*voters), True))
        scored = model.with_votes(predicted, voters, _PREDICTION, target.names)
        (sums,) = scored.agg(F.count("*").alias("rows"), *_sums(target, center)).collect()
    if sums["rows"] < count:
        warnings.warn(
            f"{count - sums['rows']} of {count} training rows have no out-of-bag prediction: every member drew them. "
            f"oobScore leaves them out; numModels is {len(members)}, and more members would predict more rows.",
            stacklevel=5,
        )
    return {"oob_score": _score(sums, classes=kind_of(base) == "classifier"), "oob_rows": sums["rows"]}


def _has_label(base: Estimator[Any], target: Target) -> Column:
    last = leaf(base)
    classes = last.classes() if isinstance(last, DistributedEstimator) and kind_of(base) == "classifier" else None
    ignored = None if classes is None else classes.ignored
    return F.lit(True) if ignored is None else target.labels != ignored


def _sums(target: Target, center: float | None) -> list[Column]:
    weights, labels, predictions = target.weights, target.labels, F.coalesce(col(_PREDICTION), F.lit(math.nan))
    deviation, error = labels - F.lit(center), labels - predictions  # centered, since squares of large labels cancel
    sums = {
        "weight": weights,
        "right": F.when(labels == predictions, weights).otherwise(0.0),
        "deviation": weights * deviation,
        "total": weights * deviation * deviation,
        "residual": weights * error * error,
    }
    return [F.sum(value).alias(name) for name, value in sums.items()]


def _score(sums: Row, *, classes: bool) -> float | None:
    if not sums["rows"]:
        return None
    if classes:
        return float(sums["right"] / sums["weight"])
    total = sums["total"] - sums["deviation"] ** 2 / sums["weight"]
    if total <= 0:
        warnings.warn(
            f"the labels of all {sums['rows']} out-of-bag rows are equal: their R2, oobScore, is not defined.",
            stacklevel=6,
        )
        return None
    return float(1 - sums["residual"] / total)
