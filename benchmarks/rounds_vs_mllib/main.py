"""L-BFGS by rounds against MLlib's LogisticRegression: seconds per evaluation, and to the same objective.

Both minimise the mean logistic loss of a9a plus ``l2/2 ||w||^2`` without a penalty of the intercept, on the same scaled
features, in double precision, on the same two executors.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from pyspark.ml.classification import LogisticRegression
from pyspark.sql import DataFrame
from torch import nn

from benchmarks.pairs import Side, environment, interleave, options, verdict
from benchmarks.rounds_vs_mllib.data import COLUMNS, frames, logistic
from benchmarks.session import session
from sparkdl import SparkCluster
from sparkdl.cluster.tasks import TaskRunner
from sparkdl.rounds.algorithms.lbfgs import LBFGS
from sparkdl.rounds.loop import Rounds
from sparkdl.training.objective.objective import Objective

BAR = "at most 3"

L2 = 1e-4
NEAR = 1e-4  # relative to the optimum


@dataclass
class Curve:
    """Objectives, and the seconds until each was known."""

    values: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def steps(self, optimum: float) -> int:
        """Number of entries until the first near the optimum."""
        return next(step for step, value in enumerate(self.values, start=1) if value <= optimum * (1 + NEAR))


class Rounded:
    """L-BFGS by rounds."""

    def __init__(self, frame: DataFrame, evaluations: int) -> None:
        self.curves: list[Curve] = []
        self.packing: list[float] = []
        self._frame, self._evaluations = frame, evaluations

    def per_evaluation(self) -> float:
        """Seconds of an evaluation on packed data."""
        with self._packed(self._frame.limit(100)):
            pass  # Spark ends idle Python workers while MLlib runs; new ones import torch
        start = time.perf_counter()
        with self._packed(self._frame) as jobs:
            self.packing.append(time.perf_counter() - start)
            curve, start = Curve(), time.perf_counter()

            def listener(row: dict[str, Any]) -> None:
                curve.values.append(row["objective"])
                curve.times.append(time.perf_counter() - start)

            objective = Objective(logistic, nn.BCEWithLogitsLoss(), precision="fp64")
            algorithm = LBFGS(l2=L2, gtol=0.0, ftol=0.0)
            Rounds(algorithm, objective, max_rounds=self._evaluations, listener=listener).run(jobs)
        self.curves.append(curve)
        return curve.times[-1] / len(curve.times)

    @staticmethod
    def _packed(frame: DataFrame) -> AbstractContextManager[TaskRunner]:
        return SparkCluster(frame.sparkSession, 2).map_reduce(frame, COLUMNS, num_shards=2)


class Classic:
    """MLlib's LogisticRegression."""

    def __init__(self, frame: DataFrame, iterations: int) -> None:
        self.values: list[float] = []
        self._frame, self._iterations = frame, iterations

    def per_iteration(self) -> float:
        """Seconds of an iteration: the extra time of a long fit over a fit of one iteration."""
        few, _ = self._fit(1)
        many, count = self._fit(self._iterations)
        return (many - few) / (count - 1)

    def until(self, optimum: float) -> float:
        """Seconds of a fit to near the optimum."""
        steps = Curve(self.values).steps(optimum) - 1  # the first value belongs to the start
        return self._fit(steps)[0]

    def _fit(self, iterations: int) -> tuple[float, int]:
        estimator = LogisticRegression(
            regParam=L2, elasticNetParam=0.0, standardization=False, maxIter=iterations, tol=1e-12
        )
        start = time.perf_counter()
        summary = estimator.fit(self._frame).summary
        took = time.perf_counter() - start
        if iterations == self._iterations:
            self.values = [float(value) for value in summary.objectiveHistory]
        return took, int(summary.totalIterations)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, rounds=5)
    parser.add_argument("--evaluations", type=int, default=100, help="evaluations of each run (default %(default)s)")
    args = parser.parse_args(arguments)
    print(environment())
    with session("rounds_vs_mllib") as spark:
        vectors, arrays = frames(spark, partitions=2)
        ours, theirs = Rounded(arrays, args.evaluations), Classic(vectors, args.evaluations)
        pairs = interleave(
            Side("an evaluation", ours.per_evaluation), Side("an iteration", theirs.per_iteration), rounds=args.rounds
        )
        optimum = min(*theirs.values, *(min(curve.values) for curve in ours.curves))
        whole = median(theirs.until(optimum) for _ in range(args.rounds))
    print(pairs.table("seconds"))
    curves = ours.curves[-args.rounds :]
    steps = curves[-1].steps(optimum)
    loop = median(curve.times[steps - 1] for curve in curves)
    packing = median(ours.packing[-args.rounds :])
    print(f"least objective of both sides: {optimum:.9f}")
    print(f"to within {NEAR:g} of it, rounds: {steps} evaluations, {loop:.4g} s and {packing:.4g} s of packing before")
    print(f"the same, MLlib: {Curve(theirs.values).steps(optimum) - 1} iterations, {whole:.4g} s")
    print(f"to the optimum: {(loop + packing) / whole:.3g} of MLlib's time; without packing {loop / whole:.3g}")
    print(verdict(pairs.ratio, BAR))


if __name__ == "__main__":
    main()
