"""Trains members: PyTorch ones in tasks of one job, all others as fits of the driver."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl.ensembles.draws import Draw
from sparkdl.ensembles.member import Member, Models, Plan, Rows
from sparkdl.spark.columns import named


def fit_members(members: Sequence[Member], rows: Rows, plan: Plan) -> Models:
    """Train the members that have not been finished before.

    One that fails does not keep the others from being trained, and kept.

    Args:
        members: any of them, with indices of their own; the estimators may be of several kinds.
        rows: what they are trained on.
        plan: how.

    Raises:
        InvalidInput: a member was given what it cannot use; the message names it.
        SparkdlError: a member failed; the message names it and says how many are kept.
    """
    models = [member.estimator.fit(drawn(rows, member.draw)) for member in members]
    return Models(models, [member.index for member in members])


def drawn(rows: Rows, draw: Draw) -> DataFrame:
    """The rows of a draw, each as often as it is drawn."""
    count = draw.column(named(rows.row_id))
    if not draw.repeats:
        return rows.frame.where(count > 0)
    return rows.frame.withColumn("sparkdl copies", F.explode(F.array_repeat(F.lit(0), count))).drop("sparkdl copies")
