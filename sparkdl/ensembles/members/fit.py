"""Training of members: PyTorch members in tasks of one job, all others as fits of the driver."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from sparkdl.ensembles.members.driver_fits import fit_on_driver
from sparkdl.ensembles.members.member import FittedMembers, Member, Plan
from sparkdl.ensembles.members.task_fits import fit_in_tasks
from sparkdl.errors import SparkdlError, Stopped
from sparkdl.ml.trials.single_worker import task_settings, trains_in_task


def fit_members(members: Sequence[Member], rows: DataFrame, plan: Plan) -> FittedMembers:
    """Train the unfinished members, which may be of several kinds, on rows with ids.

    If a member fails, the other members are still trained and stored.

    Raises:
        InvalidInput: the rows are invalid, or a member rejects them; the message names the member.
        Stopped: the process received a stop request; running fits have finished.
        SparkdlError: a member failed, by default a ``WorkerFailed``; the message names the member and the number of
            stored members.
    """
    lots = list[tuple[object, list[Member]]]()  # members of one job read the same columns, in equal tasks
    for member in members:
        base, in_task = member.estimator, trains_in_task(member.estimator, rows.sparkSession)
        job: object = (base.derived_columns(), task_settings(base)) if in_task else None
        lot = next((lot for known, lot in lots if known == job), None)
        if lot is None:
            lots.append((job, [member]))
        else:
            lot.append(member)
    fits, failures = list[FittedMembers](), list[SparkdlError]()
    for job, lot in lots:
        try:
            fits.append((fit_on_driver if job is None else fit_in_tasks)(lot, rows, plan))
        except Stopped:
            raise
        except SparkdlError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    fitted = {
        index: (model, seconds)
        for fit in fits
        for index, model, seconds in zip(fit.indices, fit.models, fit.seconds, strict=True)
    }
    restored = [index for fit in fits for index in fit.restored]
    return FittedMembers.of(fitted, [member.index for member in members], restored)
