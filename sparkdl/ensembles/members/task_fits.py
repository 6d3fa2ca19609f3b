"""Training of PyTorch members in one Spark job, one task per member.

Spark packs the rows once. Each task streams them to its executor's disk (``sparkdl.spark.independent_tasks``),
and trains there alone, as a gang of one; with ``device="cuda"`` on the GPU that Spark assigned to it. The task stores
its finished member, so losing an executor or the driver later costs no training.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pyspark.ml import Model
from pyspark.sql import DataFrame

from sparkdl.cluster.tasks import TaskResult, TaskRunner
from sparkdl.data.columns import InputColumn
from sparkdl.data.transforms import Transforms
from sparkdl.ensembles.members.member import FittedMembers, Member, Plan, with_others
from sparkdl.ensembles.members.store import MemberStore
from sparkdl.ensembles.members.task_work import MemberWork
from sparkdl.ensembles.resampling.subspace import masked
from sparkdl.errors import InvalidInput, WorkerLost
from sparkdl.ml.derived_columns.class_weights import ClassWeights
from sparkdl.ml.derived_columns.rows import ReadRows
from sparkdl.ml.trials.single_worker import warn_of_ignored
from sparkdl.ml.trials.task_fit import model_of, packed_rows
from sparkdl.rounds.inspection import DataSummary, InspectShard, inspect_shards
from sparkdl.spark.columns import ROW_ID
from sparkdl.training.objective.objective import Objective


def fit_in_tasks(members: Sequence[Member], rows: DataFrame, plan: Plan) -> FittedMembers:
    """Train PyTorch members of one worker each that read the same columns; raises the errors of ``fit_members``."""
    with _packed(members, rows, plan) as (jobs, weights):
        return _fitted(members, jobs, plan, weights, all_rows=True)


def fit_partitions(make: Callable[[int], Member], rows: DataFrame, plan: Plan) -> FittedMembers:
    """Train one member per non-empty partition, on the rows of that partition; no row leaves it.

    ``make`` returns the member of a partition; the estimators differ in their seeds. Raises the errors of
    ``fit_members``.
    """
    with _packed([make(0)], rows, plan) as (jobs, weights):
        empty = [index for index, count in enumerate(jobs.shard_rows) if not count]
        if empty:
            warnings.warn(
                f"{len(empty)} of {len(jobs.shard_rows)} partitions have no rows and get no member: {empty[:20]}.",
                stacklevel=4,
            )
        members = [make(index) for index, count in enumerate(jobs.shard_rows) if count]
        return _fitted(members, jobs, plan, weights, all_rows=False)


@contextmanager
def _packed(members: Sequence[Member], rows: DataFrame, plan: Plan) -> Iterator[tuple[TaskRunner, ClassWeights | None]]:
    base = members[0].estimator
    read: ReadRows = base.derived_columns().read(rows)
    read = replace(read, columns=replace(read.columns, row_id=InputColumn(ROW_ID, "int64")))
    unencrypted = all(member.estimator.getAllowUnencrypted() for member in members)
    with packed_rows(read, base, plan.watch, allow_unencrypted=unencrypted) as jobs:
        yield jobs, read.class_weights


def _fitted(
    members: Sequence[Member], jobs: TaskRunner, plan: Plan, weights: ClassWeights | None, *, all_rows: bool
) -> FittedMembers:
    store, indices = plan.store, [member.index for member in members]
    objectives = _objectives(members, jobs)
    # Only its task can verify the rows of a partition's member.
    states = dict[int, dict[str, Any]]()
    if all_rows and store is not None:
        states = {index: state for index in indices if (state := store.read(index)) is not None}
    missing = [member for member in members if member.index not in states]
    # If boosting repeats a step, this fit may already have trained and stored the member.
    restored = [index for index, state in states.items() if store is None or state["fit"] != store.token]
    plan.expect(len(members), sorted(states))
    # The labels of all rows are validated; a member's rows may lack a class.
    different: dict[str, Any] = {"classes": None} | ({} if store is None else {"result_limit": None})
    trainings = {
        member.index: replace(
            member.estimator.training(),
            objective=objectives[member.index],
            layout=member.estimator.single_layout(),
            **different,
        )
        for member in missing
    }
    work = MemberWork(trainings, {member.index: member.draw for member in missing}, store)
    failures = list[TaskResult]()
    for result in jobs.each(work, [*trainings], all_rows=all_rows):
        if result.trouble is not None:
            failures.append(result)
        else:
            states[result.index] = result.note["state"] or _read(store, result.index)
            restored += [] if result.note["trained"] else [result.index]
    if failures:
        raise with_others(
            failures[0].error(f"member {failures[0].index}"),
            [result.index for result in failures[1:]],
            finished=len(states),
            count=len(members),
            stored=None if store is None else len(states),
        )
    fitted = dict[int, tuple[Model, float]]()
    for member in members:
        factory, state = objectives[member.index].model, states[member.index]
        packed = state["weights"].numpy().tobytes()
        fitted[member.index] = model_of(member.estimator, factory, packed, state, weights), state["seconds"]
    return FittedMembers.of(fitted, indices, restored)


def _objectives(members: Sequence[Member], jobs: TaskRunner) -> dict[int, Objective]:
    objectives, summaries = dict[int, Objective](), dict[str, DataSummary]()
    for member in members:
        estimator, objective = member.estimator, member.estimator.objective()
        if estimator.uid not in summaries:  # copies of one estimator share its uid and differ in their seeds
            warn_of_ignored(estimator, "members")
            training = estimator.training()
            collate = Transforms(training.collate, None, objective.criterion().denominators) or None
            work = InspectShard(objective, estimator.classes(), collate, training.kind, steps=True)
            summaries[estimator.uid] = inspect_shards(jobs, work)
        if member.features is not None:
            shapes = summaries[estimator.uid].inputs
            if shapes is None:
                raise InvalidInput("maxFeatures is set, and an input has ragged rows; expected rows of one shape.")
            objective = replace(objective, model=masked(objective.model, member.features, shapes))
        objectives[member.index] = objective
    return objectives


def _read(store: MemberStore | None, index: int) -> dict[str, Any]:
    state = None if store is None else store.read(index)
    if state is None:
        raise WorkerLost(f"member {index} is trained, but no longer in runDir; call fit again.")
    return state
