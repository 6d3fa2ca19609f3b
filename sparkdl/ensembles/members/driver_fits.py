"""Fits of members by the driver, ``parallelism`` at a time; each fit runs its own Spark jobs.

Each member trains on the rows of its draw. If the draw repeats row ``i`` ``k_i`` times and the estimator takes weights,
the row appears once with ``k_i`` times its weight. Otherwise it appears ``k_i`` times; so also in a pipeline with
another fitted stage, such as a scaler, which would ignore the weights.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from typing import Any

from pyspark import inheritable_thread_target
from pyspark.ml import Estimator, Model, Pipeline
from pyspark.ml.param import Params
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl.cluster.shutdown import stop_requested, stopped
from sparkdl.ensembles.base_learner import changed, column, leaf
from sparkdl.ensembles.members.failures import member_error, with_others
from sparkdl.ensembles.members.member import Member, Models, Plan, Rows, persisted
from sparkdl.ensembles.resampling.feature_slicing import sliced
from sparkdl.ml.persistence.nested_params import within
from sparkdl.spark.columns import col as called

_COPIES, _PLACE, _NOTHING, _WEIGHT = "sparkdl copies", "sparkdl copy", "sparkdl nothing", "sparkdl weight"


@dataclass(frozen=True)
class Fitted:
    """The result of one member's fit.

    Attributes:
        model: the fitted model; None if the fit failed.
        seconds: duration of the fit.
        kept: whether the member is stored for another fit.
        restored: whether the member was loaded from the store.
        error: cause of a failure; default: none.
    """

    model: Model | None = None
    seconds: float = 0.0
    kept: bool = False
    restored: bool = False
    error: BaseException | None = None


def fit_on_driver(members: Sequence[Member], rows: Rows, plan: Plan) -> Models:
    """Fit the unfinished members, each in a thread of the driver.

    If a member fails, the other members are still fitted and stored.

    Args:
        members: members with distinct indices.
        rows: training rows; several fits share a cache of them unless they are cached already.
        plan: settings of the fit.

    Raises:
        InvalidInput: a member received unusable input; the message names the member.
        Stopped: the process received a stop request; running fits have finished.
        SparkdlError: a member failed, by default a ``WorkerFailed``; the message names the member and the number of
            stored members.
    """
    found: dict[int, Fitted] = {}
    # As in pyspark.ml.tuning, the threads inherit the job group, tags and properties.
    inheriting = inheritable_thread_target(rows.frame.sparkSession)
    with ThreadPool(max(1, min(plan.parallelism, len(members)))) as pool:
        if plan.kept is not None:
            indices = [member.index for member in members]
            models = pool.map(inheriting(plan.kept.load), indices, chunksize=1)
            found |= {
                index: Fitted(model, plan.kept.seconds(index), kept=True, restored=True)
                for index, model in zip(indices, models, strict=True)
                if model is not None
            }
        missing = [member for member in members if member.index not in found]
        plan.expect(len(members), sorted(found))
        level = rows.frame.storageLevel
        caching = len(missing) > 1 and not (level.useMemory or level.useDisk)
        with persisted(rows.frame) if caching else nullcontext():
            fitted = pool.starmap(inheriting(_fitted), [(each, rows, plan) for each in missing], chunksize=1)
        found |= {member.index: each for member, each in zip(missing, fitted, strict=True)}
    found = {member.index: found[member.index] for member in members}
    _raise_first(found, plan)
    return Models(
        [each.model for each in found.values() if each.model is not None],
        list(found),
        [each.seconds for each in found.values()],
        trained=[index for index, each in found.items() if not each.restored],
        restored=[index for index, each in found.items() if each.restored],
    )


def drawn(member: Member, rows: Rows) -> tuple[Estimator[Any], DataFrame]:
    """Return a member's estimator, and the rows of its draw without their ids."""
    estimator, frame = member.estimator, rows.frame
    count = member.draw.column(called(rows.row_id))
    validation = column(estimator, "validationIndicatorCol")
    if member.draw.training_only and validation is not None:
        count = F.when(called(validation), 1).otherwise(count)
    if not member.draw.repeats:
        return estimator, frame.where(count > 0).drop(rows.row_id)
    copies = called(_COPIES)
    frame = frame.withColumn(_COPIES, count).where(copies > 0)
    if takes_weights(estimator):
        own = column(estimator, "weightCol")
        weight = copies.cast("double") if own is None else copies * called(own)
        return changed(estimator, weightCol=_WEIGHT), frame.withColumn(_WEIGHT, weight).drop(_COPIES, rows.row_id)
    return estimator, _repeated(frame, _id_columns(estimator)).drop(rows.row_id)


def _id_columns(base: Params) -> set[str]:
    found = [each.getOrDefault("idCol") for each in within(base) if each.hasParam("idCol") and each.isDefined("idCol")]
    return {name for name in found if name is not None}


def _repeated(frame: DataFrame, ids: set[str]) -> DataFrame:
    """Repeat rows by their number of copies; the first copy keeps the row's ids, the others get new ones."""
    # posexplode() repeats the row for each array element.
    repeated = F.posexplode(F.array_repeat(F.lit(0), called(_COPIES))).alias(_PLACE, _NOTHING)
    frame = frame.select("*", repeated).drop(_NOTHING, _COPIES)
    place = called(_PLACE)
    for name in ids.intersection(frame.columns):
        own = called(name).cast("bigint")
        frame = frame.withColumn(name, F.when(place == 0, own).otherwise(F.xxhash64(own, place)))
    return frame.drop(_PLACE)


def takes_weights(base: Estimator[Any]) -> bool:
    """Whether a base treats a row of weight k like k copies of it."""
    if not isinstance(base, Pipeline):
        return leaf(base).hasParam("weightCol")
    *before, last = base.getStages()
    return not any(isinstance(stage, Estimator) for stage in before) and takes_weights(last)  # type: ignore[arg-type]


def _fitted(member: Member, rows: Rows, plan: Plan) -> Fitted:
    start, kept = time.monotonic(), plan.kept
    if stop_requested() is not None:
        return Fitted(error=stopped("had not begun with this member"))
    try:
        estimator, frame = drawn(member, rows)
        if member.features is not None:
            estimator = sliced(estimator, member.features)
        model: Model = estimator.fit(frame)
    except BaseException as error:  # the pool would never return if SystemExit ended a thread
        return Fitted(error=error)
    seconds = time.monotonic() - start
    saved = kept is not None and kept.save(member.index, model, seconds)
    plan.emit(member.index, seconds)
    return Fitted(model, seconds, kept=saved)


def _raise_first(found: Mapping[int, Fitted], plan: Plan) -> None:
    failed = {index: each.error for index, each in found.items() if each.error is not None}
    if not failed:
        return
    (index, error), *others = failed.items()
    if not isinstance(error, Exception):
        raise error
    raise with_others(
        member_error(index, error),
        [other for other, _ in others],
        finished=len(found) - len(failed),
        count=len(found),
        kept=None if plan.kept is None else sum(each.kept for each in found.values()),
    ) from error
