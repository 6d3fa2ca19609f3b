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
    places = {index: (lot, place) for lot in found for place, index in enumerate(lot.indices)}
    ordered = [places[member.index] for member in members]
    return Models(
        [lot.models[place] for lot, place in ordered],
        [member.index for member in members],
        [lot.seconds[place] for lot, place in ordered],
        trained=sorted(index for lot in found for index in lot.trained),
        restored=sorted(index for lot in found for index in lot.restored),
    )


def _lots(members: Sequence[Member]) -> list[tuple[Fit, list[Member]]]:
    """Group the members that train together; members of one job read the same columns."""
    lots: list[tuple[Fit, object, list[Member]]] = []
    for member in members:
        base = member.estimator
        columns = base.read_columns() if isinstance(base, DistributedEstimator) and trains_in_task(base) else None
        fit: Fit = fit_on_driver if columns is None else fit_in_tasks
        for _, known, some in lots:
            if known == columns:
                some.append(member)
                break
        else:
            lots.append((fit, columns, [member]))
    return [(fit, some) for fit, _, some in lots]
