"""A fit as data: what an estimator's Params ask for, and what a fit brings back. No fit function sees an estimator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from sparkdl.data.columns import Columns
from sparkdl.ml.checkpointing import RecoverySettings
from sparkdl.ml.persistence.export import Signature
from sparkdl.ml.run import Run
from sparkdl.rounds import Algorithm
from sparkdl.training.loop import Training


@dataclass(frozen=True)
class RoundsSettings:
    """What only a fit in rounds uses.

    Attributes:
        algorithm: of the rounds.
        max_rounds: the largest number of rounds; None for no limit.
        time_budget: seconds after which no other round begins; None for no limit.
    """

    algorithm: Algorithm
    max_rounds: int | None
    time_budget: float | None


@dataclass(frozen=True)
class FitSpec:
    """All that a fit needs.

    Attributes:
        data: the rows.
        columns: which of their columns become which tensors.
        training: the objective and the settings of the loop; rounds use its objective, seed, patience and functions.
        run: the run's directory.
        descriptions: of the Params that checkpoints depend on, by name; empty without a run's directory.
        device: ``"cpu"`` or ``"cuda"``.
        recovery: how it survives failures.
        rounds: set for a fit in rounds.
    """

    data: DataFrame
    columns: Columns
    training: Training
    run: Run
    descriptions: dict[str, Any]
    device: str
    recovery: RecoverySettings
    rounds: RoundsSettings | None = None


@dataclass(frozen=True)
class Fitted:
    """What a fit brings back.

    Attributes:
        weights: of the model, safetensors.
        history: a row per epoch or round.
        report: seconds, rows, bytes and more.
        scalar: whether the model's output is one number for each row.
        signature: shape and dtype of a row of each input; None where they have several.
    """

    weights: bytes
    history: list[dict[str, Any]]
    report: dict[str, Any]
    scalar: bool
    signature: Signature | None
