"""One version of sparkdl, in a process that stays: reads names from standard input and answers each with a figure.

It runs in the checkout of its version, whose benchmarks and package it imports.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from statistics import median

import torch
from torch import nn

sys.path.insert(0, os.getcwd())  # before an installed version

from benchmarks.ensemble_parallel import main as ensembles
from benchmarks.epoch.main import BATCH, Epochs
from benchmarks.fit.main import Fit
from benchmarks.launch.fits import Fits
from benchmarks.mlp import small
from benchmarks.pairs import seconds
from benchmarks.recovery import saving
from benchmarks.rounds_overhead import main as rounds
from benchmarks.rounds_overhead.works import Nothing
from benchmarks.session import materialised, samples, session, written
from benchmarks.step import main as steps
from sparkdl import LocalCluster, TorchModel
from sparkdl.io.weights import pack

steps.WARMUPS = 1
saving.WIDTHS = (128, *(1024,) * 7, 1)  # seven million parameters


def figures(stack: ExitStack) -> dict[str, Callable[[], float]]:
    """The measurements by name; all give seconds."""
    cluster, spark = stack.enter_context(LocalCluster(2, threads=1)), stack.enter_context(session("versions"))
    epochs = Epochs(cluster, 400_000 // BATCH * BATCH, 4)
    fits = Fits(materialised(samples(spark, 2_000, partitions=2)))
    fit = Fit(materialised(samples(spark, 400_000, partitions=2)), 400_000, 2, 1)
    model = TorchModel(factory=small, weights=pack(small()), kind="regressor")
    scored = model.transform(materialised(samples(spark, 1_000_000, partitions=2))).select("label", "prediction")
    many = ensembles.models(64)[1].transform(materialised(samples(spark, 300_000, partitions=2)))
    jobs, round_jobs = (stack.enter_context(rounds.jobs_of(spark, rows)) for rows in (1_000, 200_000))
    rows = materialised(samples(spark, 100_000, partitions=2))
    args = Namespace(width=256, epochs=2)

    def step(size: str) -> float:
        widths, block = steps.MODELS[size]
        return median(ours for ours, *_ in cluster.gang(steps.Blocks(widths, 64, block, 2, False))[0][1:])

    def saves(every: int | None) -> float:
        course = saving.train(cluster, 20, every)
        return (course.ends[-1] - course.ends[7]) / 12

    def parallel_sgd() -> float:
        objective = rounds.Objective(partial(rounds.mlp, 28, 256, 256, 1), nn.MSELoss(), rounds.sgd)
        taken: list[float] = []
        algorithm = rounds.ParallelSGD(rounds=3, shard_batch_size=256)
        rounds.Rounds(algorithm, objective, listener=lambda row: taken.append(row["seconds"])).run(round_jobs)
        return median(taken[1:])

    return {
        "step, 0.7 M": partial(step, "0.7M"),
        "step, 25 M": partial(step, "25M"),
        "epoch": lambda: 1e6 / epochs.sparkdl(),
        "recovery: a step": partial(saves, None),
        "recovery: a step, checkpoints": partial(saves, 4),
        "launch: to the first step": fits.first_step,
        "launch: whole fit": lambda: seconds(fits.first_step),
        "fit": lambda: seconds(fit.sparkdl),
        "transform": lambda: written(scored),
        "rounds: empty": lambda: median(seconds(lambda: jobs.run(Nothing(), {"x": 0})) for _ in range(5)),
        "rounds: ParallelSGD": parallel_sgd,
        "ensemble: training": lambda: seconds(lambda: ensembles.bagging(4, args).fit(rows)),
        "ensemble: scoring": lambda: written(many.select("label", "prediction")),
    }


def main() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what else is printed is no answer
    torch.set_num_threads(1)
    with ExitStack() as stack:
        measures = figures(stack)
        print(json.dumps(list(measures)), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(measures[line.strip()]()), file=answers, flush=True)


if __name__ == "__main__":
    main()
