"""The settings and the result of a fit, as plain values. Fit functions receive these, never an estimator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from sparkdl.data.columns import Columns
from sparkdl.ml.persistence.export import Signature
from sparkdl.ml.run import Run
from sparkdl.rounds import Algorithm
from sparkdl.training.loop import Training


@dataclass(frozen=True)
class FitSpec:
    """All settings of a fit.

    Attributes:
        data: the rows.
        columns: the columns and the tensors that they become.
        training: the objective and the settings of the loop; rounds use its objective, seed, patience and functions.
        run: the run's directory.
        descriptions: of the Params that checkpoints depend on, by name; empty without a run's directory.
        checkpoint_interval: as the Param ``checkpointInterval``.
        max_restarts: restarts of a gang that failed.
        min_workers: the smallest gang; None for all workers.
        elastic_timeout: seconds to wait for all slots before a smaller gang starts.
        algorithm: of a fit in rounds; None for a gang.
        max_rounds: the largest number of rounds; None for no limit.
        max_seconds: seconds after which no other round begins; None for no limit.
    """

    data: DataFrame
    columns: Columns
    training: Training
    run: Run
    descriptions: dict[str, Any]
    checkpoint_interval: int | str
    max_restarts: int
    min_workers: int | None
    elastic_timeout: float
    algorithm: Algorithm | None
    max_rounds: int | None
    max_seconds: float | None


@dataclass(frozen=True)
class Fitted:
    """The result of a fit.

    Attributes:
        weights: of the model, safetensors.
        history: a row per epoch or round.
        report: seconds, rows, bytes and more.
        scalar: whether the model's output is one number per row.
        signature: shape and dtype of a row of each input; None if rows differ in them.
    """

    weights: bytes
    history: list[dict[str, Any]]
    report: dict[str, Any]
    scalar: bool
    signature: Signature | None
