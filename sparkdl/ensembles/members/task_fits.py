"""Training of PyTorch members in one Spark job, one task per member.

Spark packs the rows once. Each task streams them to its executor's disk (``sparkdl.spark.independent_tasks``) and
trains there alone, as a gang of one. The task stores its finished member, so losing an executor or the driver later
costs no training.

Without a store, the driver collects the members one by one when all tasks have ended.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pyspark.ml import Model

from sparkdl.cluster.tasks import TaskResult, TaskRunner
from sparkdl.data.columns import InputColumn
from sparkdl.data.transforms import Transforms
from sparkdl.ensembles.members.failures import with_others
from sparkdl.ensembles.members.member import Member, Models, Plan, Rows
from sparkdl.ensembles.members.store import MemberStore
from sparkdl.ensembles.members.task_work import MemberWork
from sparkdl.ensembles.resampling.subspace import masked
from sparkdl.errors import InvalidInput, WorkerLost
from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.ml.fit_spec import Fitted
from sparkdl.ml.param_declaration import Scope
from sparkdl.ml.report import scalar_output
from sparkdl.rounds.inspection import DataSummary, InspectShard, inspect_shards
from sparkdl.spark.cluster import SparkCluster
from sparkdl.training.objective import Objective


def fit_in_tasks(members: Sequence[Member], rows: Rows, plan: Plan) -> Models:
    """Train PyTorch members that have one worker each and read the same columns.

    Args:
        members: the members.
        rows: training rows.
        plan: settings of the fit.

    Raises:
        InvalidInput: the rows are invalid, or a member rejects them.
        SparkdlError: a member failed.
    """
    with _packed(members, rows, plan) as jobs:
        return _fitted(members, jobs, plan, whole=True)


def fit_partitions(make: Callable[[int], Member], rows: Rows, plan: Plan) -> Models:
    """Train one member per non-empty partition, on the rows of that partition.

    Args:
        make: returns the member of a partition; the estimators differ in their seeds.
        rows: training rows; none leaves its partition.
        plan: settings of the fit.

    Raises:
        InvalidInput: the rows are invalid, or a member rejects them.
        SparkdlError: a member failed.
    """
    with _packed([make(0)], rows, plan) as jobs:
        empty = [index for index, count in enumerate(jobs.shard_rows) if not count]
        if empty:
            warnings.warn(
                f"{len(empty)} of {len(jobs.shard_rows)} partitions have no rows and get no member: {empty[:20]}.",
                stacklevel=4,
            )
        members = [make(index) for index, count in enumerate(jobs.shard_rows) if count]
        return _fitted(members, jobs, plan, whole=False)


@contextmanager
def _packed(members: Sequence[Member], rows: Rows, plan: Plan) -> Iterator[TaskRunner]:
    base, watch = _torch(members[0]), plan.watch
    columns = replace(base.read_columns(), row_id=InputColumn(rows.row_id, "int64"))
    cluster = SparkCluster(
        rows.frame.sparkSession,
        1,
        allow_unencrypted=all(_torch(member).getAllowUnencrypted() for member in members),
        event_directory=None if watch is None else watch.logbook.folder,
        logs=base.getLogLevel(),
        title="sparkdl" if watch is None else watch.title,
    )
    listener = None if watch is None or not base.getTelemetry() else watch.logbook
    with cluster.map_reduce(rows.frame, columns, shuffle=False, listener=listener) as jobs:
        yield jobs


def _fitted(members: Sequence[Member], jobs: TaskRunner, plan: Plan, *, whole: bool) -> Models:
    objectives, seen = dict[int, Objective](), dict[str, DataSummary]()
    for member in members:
        estimator = _torch(member)
        if estimator.uid not in seen:  # copies of one estimator share its uid and differ in their seeds
            _warn_of_unused(estimator)
            seen[estimator.uid] = inspect_shards(
                jobs, InspectShard(estimator.objective(), estimator.classes(), _collate(estimator))
            )
        objectives[member.index] = _objective(member, seen[estimator.uid])
    # Only its task can verify the rows of a partition's member.
    states = dict[int, dict[str, Any]]()
    if whole and plan.kept is not None:
        found = {each.index: plan.kept.read(each.index) for each in members}
        states = {index: state for index, state in found.items() if state is not None}
    missing = [member for member in members if member.index not in states]
    # If boosting repeats a step, this fit may already have trained and stored the member.
    restored = [index for index, state in states.items() if plan.kept is None or state["fit"] != plan.kept.token]
    plan.expect(len(members), sorted(states))
    failures = list[TaskResult]()
    # The labels of all rows are validated; a member's rows may lack a class.
    work = MemberWork(
        {
            each.index: replace(_torch(each).training(), objective=objectives[each.index], classes=None)
            for each in missing
        },
        {each.index: each.draw for each in missing},
        plan.kept,
    )
    for result in jobs.each(work, [member.index for member in missing], all_rows=whole):
        if result.trouble is not None:
            failures.append(result)
            continue
        states[result.index] = result.note["state"] or _read(plan.kept, result.index)
        restored += [] if result.note["trained"] else [result.index]
    if failures:
        raise with_others(
            failures[0].error(f"member {failures[0].index}"),
            [each.index for each in failures[1:]],
            finished=len(states),
            count=len(members),
            kept=None if plan.kept is None else len(states),
        )
    return Models(
        [_model(_torch(each), objectives[each.index], states[each.index]) for each in members],
        [each.index for each in members],
        [states[each.index]["seconds"] for each in members],
        trained=[each.index for each in members if each.index not in restored],
        restored=[each.index for each in members if each.index in restored],
    )


def _objective(member: Member, seen: DataSummary) -> Objective:
    objective = _torch(member).objective()
    if member.features is None:
        return objective
    if seen.inputs is None:
        raise InvalidInput("maxFeatures is set, and an input has ragged rows; expected rows of one shape.")
    return replace(objective, model=masked(objective.model, member.features, seen.inputs))


def _model(estimator: DistributedEstimator, objective: Objective, state: dict[str, Any]) -> Model:
    report = state["report"]
    told = {name: report[name] for name in ("train_seconds", "feed_wait_seconds", "rows", "best_epoch")}
    told |= {
        "seconds": state["seconds"],
        "rows_per_second": state["history"][-1]["samples"] / max(report["train_seconds"], 1e-9),
        "bytes": 0,
        "restarts": 0,
        "workers": [1],
    }
    weights = state["weights"].numpy().tobytes()
    fitted = Fitted(weights, state["history"], told, scalar_output([report["output"]]), report["inputs"])
    return estimator.make_model(fitted, objective.model)


def _read(kept: MemberStore | None, index: int) -> dict[str, Any]:
    found = None if kept is None else kept.read(index)
    if found is None:
        raise WorkerLost(f"member {index} is trained, but no longer in runDir; call fit again.")
    return found


def _collate(estimator: DistributedEstimator) -> Transforms | None:
    return Transforms(estimator.getCollate(), None, estimator.objective().criterion().denominators) or None


def _warn_of_unused(estimator: DistributedEstimator) -> None:
    for name in estimator.changed_from_default(estimator.names_outside(Scope.TASK)):
        warnings.warn(
            f"{name} is {estimator.getOrDefault(name)!r}; members that train in tasks ignore it.",
            stacklevel=6,
        )


def _torch(member: Member) -> DistributedEstimator:
    assert isinstance(member.estimator, DistributedEstimator)
    return member.estimator
