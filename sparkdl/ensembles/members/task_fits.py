"""PyTorch members in one Spark job, each in a task of its own.

The rows are packed once; every task streams them to its executor's disk (``sparkdl.spark.independent_tasks``) and
trains there by itself, as a gang of one. A finished member is kept by its task, so that neither an executor nor a
driver that is lost later makes it train again.

Without a place to keep members, they come to the driver one after the other when all have ended.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pyspark.ml import Model

from sparkdl.cluster.tasks import Jobs, Mapped
from sparkdl.data.columns import Column
from sparkdl.data.transforms import Transforms
from sparkdl.ensembles.members.failures import with_others
from sparkdl.ensembles.members.member import Member, Models, Plan, Rows
from sparkdl.ensembles.members.store import Kept
from sparkdl.ensembles.members.task_work import MemberWork
from sparkdl.ensembles.resampling.subspace import masked
from sparkdl.errors import InvalidInput, MemberLost, SparkdlError
from sparkdl.ml.estimator import GangEstimator
from sparkdl.ml.fit_spec import Fitted
from sparkdl.ml.param_declaration import Scope
from sparkdl.ml.report import scalar_output
from sparkdl.ml.tracking.tracker import apart
from sparkdl.rounds.inspection import Look, Seen, look
from sparkdl.spark.cluster import SparkCluster
from sparkdl.training.objective import Objective


def fit_in_tasks(members: Sequence[Member], rows: Rows, plan: Plan) -> Models:
    """Train members whose estimators are PyTorch ones of one worker and read the same columns.

    Args:
        members: to be trained.
        rows: what they are trained on.
        plan: how.

    Raises:
        InvalidInput: the rows cannot be used, or a member refused them.
        SparkdlError: a member failed.
    """
    with _packed(members, rows, plan) as jobs:
        return _fitted(members, jobs, plan, whole=True)


def fit_partitions(make: Callable[[int], Member], rows: Rows, plan: Plan) -> Models:
    """Train a member for each partition that has rows, of its rows alone.

    Args:
        make: makes the member of a partition; the estimators differ in their seeds.
        rows: what they are trained on; nothing of them leaves its partition.
        plan: how.

    Raises:
        InvalidInput: the rows cannot be used, or a member refused them.
        SparkdlError: a member failed.
    """
    with _packed([make(0)], rows, plan) as jobs:
        empty = [index for index, count in enumerate(jobs.parts) if not count]
        if empty:
            warnings.warn(
                f"{len(empty)} of {len(jobs.parts)} partitions have no rows, and so no members: {empty[:20]}.",
                stacklevel=4,
            )
        members = [make(index) for index, count in enumerate(jobs.parts) if count]
        return _fitted(members, jobs, plan, whole=False)


@contextmanager
def _packed(members: Sequence[Member], rows: Rows, plan: Plan) -> Iterator[Jobs]:
    """The rows, which all members read the same columns of."""
    columns = replace(_torch(members[0]).read_columns(), row_id=Column(rows.row_id, "int64"))
    plaintext = all(_torch(member).getAllowPlaintext() for member in members)
    base, watch = _torch(members[0]), plan.watch
    cluster = SparkCluster(
        rows.frame.sparkSession,
        1,
        allow_plaintext=plaintext,
        events=None if watch is None else watch.folder,
        logs=base.getLogLevel(),
        title="sparkdl" if watch is None else watch.title,
    )
    listener = None if watch is None or not base.getEvents() else watch.logbook
    with cluster.map_reduce(rows.frame, columns, shuffle=False, listener=listener) as jobs:
        yield jobs


def _fitted(members: Sequence[Member], jobs: Jobs, plan: Plan, *, whole: bool) -> Models:
    objectives, seen = dict[int, Objective](), dict[str, Seen]()
    for member in members:
        estimator = _torch(member)
        if estimator.uid not in seen:  # copies of one estimator have one uid, and differ in their seeds
            _warn_of_unused(estimator)
            seen[estimator.uid] = look(jobs, Look(estimator.objective(), estimator.classes(), _collate(estimator)))
        objectives[member.index] = _objective(member, seen[estimator.uid])
    # A member of a partition is known by its rows as well, and only its task sees these.
    states = _finished(members, plan) if whole else {}
    missing = [member for member in members if member.index not in states]
    # One that this fit has trained is there before it is asked for where a step is taken again.
    restored = [index for index, state in states.items() if plan.kept is None or state["fit"] != plan.kept.token]
    plan.expect(len(members), sorted(states))
    failures = list[Mapped]()
    # The labels of all rows have been looked at; those of a member may well lack a class.
    work = MemberWork(
        {
            each.index: replace(_torch(each).training(), objective=objectives[each.index], classes=None)
            for each in missing
        },
        {each.index: each.draw for each in missing},
        plan.kept,
    )
    for found in jobs.each(work, [member.index for member in missing], whole=whole):
        if found.trouble is not None:
            failures.append(found)
            continue
        states[found.index] = found.note["state"] or _read(plan.kept, found.index)
        restored += [] if found.note["trained"] else [found.index]
    if failures:
        raise _failed(failures, states, members, plan)
    return Models(
        [_model(_torch(each), objectives[each.index], states[each.index]) for each in members],
        [each.index for each in members],
        [states[each.index]["seconds"] for each in members],
        trained=[each.index for each in members if each.index not in restored],
        restored=[each.index for each in members if each.index in restored],
    )


def _finished(members: Sequence[Member], plan: Plan) -> dict[int, dict[str, Any]]:
    """What is kept of members: a task for one of them would read all rows for nothing."""
    if plan.kept is None:
        return {}
    found = {each.index: plan.kept.read(each.index) for each in members}
    return {index: state for index, state in found.items() if state is not None}


def _failed(
    failures: Sequence[Mapped], states: Mapping[int, Any], members: Sequence[Member], plan: Plan
) -> SparkdlError:
    return with_others(
        failures[0].error(f"member {failures[0].index}"),
        [each.index for each in failures[1:]],
        finished=len(states),
        count=len(members),
        kept=None if plan.kept is None else len(states),
    )


def _objective(member: Member, seen: Seen) -> Objective:
    """What a member minimises: with a subspace, of a model that sees some of the features."""
    objective = _torch(member).objective()
    if member.features is None:
        return objective
    if seen.inputs is None:
        raise InvalidInput("featureSubset needs inputs whose rows have one shape each; expected no ragged columns.")
    return replace(objective, model=masked(objective.model, member.features, seen.inputs))


def _model(estimator: GangEstimator, objective: Objective, state: dict[str, Any]) -> Model:
    report, seconds = state["report"], state["seconds"]
    told = {
        "seconds": seconds,
        "train_seconds": report["train_seconds"],
        "feed_wait_seconds": report["feed_wait_seconds"],
        "rows": report["rows"],
        "rows_per_second": state["history"][-1]["samples"] / max(report["train_seconds"], 1e-9),
        "bytes": 0,
        "restarts": 0,
        "workers": [1],
        "best_epoch": report["best_epoch"],
    }
    weights = state["weights"].numpy().tobytes()
    fitted = Fitted(weights, state["history"], told, scalar_output([report["output"]]), report["inputs"])
    return estimator.make_model(fitted, objective.model)


def _read(kept: Kept | None, index: int) -> dict[str, Any]:
    found = None if kept is None else kept.read(index)
    if found is None:
        raise MemberLost(f"member {index} was finished, and is no longer where it was kept: fit again.")
    return found


def _collate(estimator: GangEstimator) -> Transforms | None:
    found = Transforms(estimator.getCollate(), None, estimator.objective().criterion().masses)
    return found if found else None


def _warn_of_unused(estimator: GangEstimator) -> None:
    here = apart(estimator.getHooks())[1]
    if here:
        names = ", ".join(type(hook).__name__ for hook in here)
        warnings.warn(
            f"hooks has {names}, which are called on the driver, where members that train in tasks have no fit of "
            "their own: they are ignored.",
            stacklevel=6,
        )
    for name in estimator.changed_from_default(estimator.names_outside(Scope.TASK)):
        warnings.warn(
            f"{name} is {estimator.getOrDefault(name)!r}, of which a member that trains in a task makes no use: it "
            "is ignored.",
            stacklevel=6,
        )


def _torch(member: Member) -> GangEstimator:
    assert isinstance(member.estimator, GangEstimator)
    return member.estimator
