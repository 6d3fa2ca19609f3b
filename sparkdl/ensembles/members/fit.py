"""Training of members: PyTorch members in tasks of one job, all others as fits of the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparkdl.ensembles.base_learner import trains_in_task
from sparkdl.ensembles.members.driver_fits import fit_on_driver
from sparkdl.ensembles.members.member import Member, Models, Plan, Rows
from sparkdl.ensembles.members.task_fits import fit_in_tasks
from sparkdl.errors import SparkdlError, Stopped
from sparkdl.ml.estimator import DistributedEstimator

Fit = Callable[[Sequence[Member], Rows, Plan], Models]


def fit_members(members: Sequence[Member], rows: Rows, plan: Plan) -> Models:
    """Train the unfinished members.

    If a member fails, the other members are still trained and stored.

    Args:
        members: members with distinct indices; the estimators may be of several kinds.
        rows: training rows.
        plan: settings of the fit.

    Raises:
        InvalidInput: a member received unusable input; the message names the member.
        SparkdlError: a member failed; the message names the member and the number of stored members.
    """
    found, failures = list[Models](), list[SparkdlError]()
    for fit, some in _lots(members):
        try:
            found.append(fit(some, rows, plan))
        except Stopped:
            raise
        except SparkdlError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    fitted = {
        index: (model, seconds)
        for lot in found
        for index, model, seconds in zip(lot.indices, lot.models, lot.seconds, strict=True)
    }
    ordered = [fitted[member.index] for member in members]
    return Models(
        [model for model, _ in ordered],
        [member.index for member in members],
        [seconds for _, seconds in ordered],
        trained=sorted(index for lot in found for index in lot.trained),
        restored=sorted(index for lot in found for index in lot.restored),
    )


def _lots(members: Sequence[Member]) -> list[tuple[Fit, list[Member]]]:
    """Group the members that train together; members of one job read the same columns."""
    lots: list[tuple[object, list[Member]]] = []
    for member in members:
        base = member.estimator
        columns = base.read_columns() if isinstance(base, DistributedEstimator) and trains_in_task(base) else None
        for known, some in lots:
            if known == columns:
                some.append(member)
                break
        else:
            lots.append((columns, [member]))
    return [(fit_on_driver if columns is None else fit_in_tasks, some) for columns, some in lots]
