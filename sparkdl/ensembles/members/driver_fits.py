"""Fits of members by the driver, ``parallelism`` at a time; each fit runs its own Spark jobs.

Each member trains on the rows of its draw. If the draw repeats row ``i`` ``k_i`` times and the estimator takes weights,
the row appears once with ``k_i`` times its weight. Otherwise it appears ``k_i`` times: for a network, whose epoch would
have fewer steps, and in a pipeline with another fitted stage, such as a scaler, which would ignore the weights.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.ml import Estimator, Model, Pipeline
from pyspark.ml.param import Params
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl.cluster.shutdown import stop_requested, stopped
from sparkdl.ensembles.base_learner import changed, check_member, column, leaf
from sparkdl.ensembles.members.member import FittedMembers, Member, Plan, member_error, with_others
from sparkdl.ensembles.resampling.feature_slicing import sliced
from sparkdl.ensembles.resampling.validation_rows import with_validation_column
from sparkdl.errors import Stopped
from sparkdl.ml.params import TrainingParams
from sparkdl.ml.persistence.nested_params import within
from sparkdl.ml.persistence.reader_writer import modules_of
from sparkdl.ml.trials.driver_threads import in_threads
from sparkdl.ml.trials.single_worker import with_one_worker
from sparkdl.rounds import is_algorithm
from sparkdl.spark.columns import ROW_ID, col
from sparkdl.spark.error_messages import cancellation
from sparkdl.spark.session import persisted

_COPIES, _PLACE, _NOTHING, _WEIGHT = "sparkdl copies", "sparkdl copy", "sparkdl nothing", "sparkdl weight"


def fit_on_driver(members: Sequence[Member], rows: DataFrame, plan: Plan) -> FittedMembers:
    """Fit the unfinished members, each in a thread of the driver.

    Several fits share a cache of the rows unless they are cached already. Raises the errors of ``fit_members``.
    """
    store, indices = plan.store, [member.index for member in members]
    fitted = dict[int, tuple[Model, float]]()
    if store is not None:
        modules = modules_of(*(member.estimator for member in members))
        load = partial(store.load, modules=modules)
        for index, outcome in zip(indices, in_threads(rows.sparkSession, load, indices, plan.parallelism), strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome is not None:
                fitted[index] = outcome
    restored = sorted(fitted)
    plan.expect(len(members), restored)
    missing = [member for member in members if member.index not in fitted]
    level = rows.storageLevel
    caching = len(missing) > 1 and not (level.useMemory or level.useDisk)
    with persisted(rows) if caching else nullcontext():
        fit = partial(_fit_and_store, rows=rows, plan=plan, cancelled=threading.Event())
        results = in_threads(rows.sparkSession, fit, missing, plan.parallelism)
    stored, errors = len(restored), dict[int, BaseException]()
    for member, result in zip(missing, results, strict=True):
        if isinstance(result, BaseException):
            errors[member.index] = result
        else:
            model, seconds, saved = result
            fitted[member.index] = model, seconds
            stored += saved
    if errors:
        # The first stop, else the first error: after the user cancelled a job, members that had not begun fail too.
        index, error = min(errors.items(), key=lambda item: not isinstance(item[1], Stopped))
        if not isinstance(error, Exception):
            raise error
        raise with_others(
            member_error(index, error),
            [sibling for sibling in errors if sibling != index],
            finished=len(fitted),
            count=len(members),
            stored=None if store is None else stored,
        ) from error
    return FittedMembers.of(fitted, indices, restored)


def _fit_and_store(
    member: Member, rows: DataFrame, plan: Plan, cancelled: threading.Event
) -> tuple[Model, float, bool]:
    if stop_requested() is not None:
        raise stopped("had not begun with this member")
    if cancelled.is_set():
        raise Stopped("the user cancelled the run before this member began.")
    start = time.monotonic()
    estimator, frame = drawn(replace(member, estimator=with_one_worker(member.estimator)), rows)
    if member.features is not None:
        estimator = sliced(estimator, member.features)
    try:
        model: Model = estimator.fit(frame)
        check_member("the model", model)
    except Exception as error:
        ended = error if isinstance(error, Stopped) else cancellation(error)
        if ended is None:
            raise
        cancelled.set()
        raise ended from error
    seconds = time.monotonic() - start
    saved = plan.store is not None and plan.store.save(member.index, model, seconds)
    plan.emit(member.index, seconds)
    return model, seconds, saved


def drawn(member: Member, rows: DataFrame) -> tuple[Estimator[Any], DataFrame]:
    """A member's estimator, and the rows of its draw without their ids."""
    estimator, count = member.estimator, member.draw.column(col(ROW_ID))
    if member.draw.training_only:  # before copies of a row get new ids
        estimator, rows = with_validation_column(estimator, rows)
    validation = column(estimator, "validationIndicatorCol")
    if member.draw.training_only and validation is not None:
        count = F.when(col(validation), 1).otherwise(count)
    if not member.draw.repeats:
        return estimator, rows.where(count > 0).drop(ROW_ID)
    copies = col(_COPIES)
    frame = rows.withColumn(_COPIES, count).where(copies > 0)
    if takes_weights(estimator):
        name = column(estimator, "weightCol")
        weight = copies.cast("double") if name is None else copies * col(name)
        return changed(estimator, weightCol=_WEIGHT), frame.withColumn(_WEIGHT, weight).drop(_COPIES, ROW_ID)
    return estimator, _repeated(frame, estimator).drop(ROW_ID)


def _repeated(frame: DataFrame, base: Params) -> DataFrame:
    ids = {part.getOrDefault("idCol") for part in within(base) if part.hasParam("idCol") and part.isDefined("idCol")}
    # posexplode() repeats the row for each array element.
    repeated = F.posexplode(F.array_repeat(F.lit(0), col(_COPIES))).alias(_PLACE, _NOTHING)
    frame = frame.select("*", repeated).drop(_NOTHING, _COPIES)
    place = col(_PLACE)
    for name in ids.intersection(frame.columns):
        row_id = col(name).cast("bigint")
        frame = frame.withColumn(name, F.when(place == 0, row_id).otherwise(F.xxhash64(row_id, place)))
    return frame.drop(_PLACE)


def takes_weights(base: Any) -> bool:
    """Whether a base treats a row of weight k like k copies; a network that trains in steps would take fewer steps."""
    strategies = [part.getStrategy() for part in within(base) if isinstance(part, TrainingParams)]
    if any(not is_algorithm(strategy) or strategy.uses_optimizer for strategy in strategies):
        return False
    if not isinstance(base, Pipeline):
        return leaf(base).hasParam("weightCol")
    *before, last = base.getStages()
    return not any(isinstance(stage, Estimator) for stage in before) and takes_weights(last)
