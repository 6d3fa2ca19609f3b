"""The settings and the result of a fit, as plain values. Fit functions receive these, never an estimator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from sparkdl.data.columns import Columns
from sparkdl.io.weights_file import Weights
from sparkdl.ml.derived_columns.class_weights import ClassWeights
from sparkdl.ml.run import Run
from sparkdl.rounds import Algorithm
from sparkdl.serving.format.export import Signature
from sparkdl.training.loop import Training


@dataclass(frozen=True)
class FitSpec:
    """All settings of a fit; those without a line here are Params.

    Attributes:
        training: the objective and the settings of the loop; rounds use its objective, seed, patience and functions.
        descriptions: of the Params that checkpoints depend on, by name; empty without a run's directory.
        algorithm: of a fit in rounds; None for a gang.
        class_weights: a weight for each class, which the weight column of ``columns`` contains; default: none.
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
    class_weights: ClassWeights | None = None


@dataclass(frozen=True)
class FitResult:
    """The result of a fit: arguments of ``TorchModel``; ``output`` is the shape of one row of the module's output."""

    weights: Weights
    history: list[dict[str, Any]]
    report: dict[str, Any]
    output: list[int] | None
    signature: Signature | None
