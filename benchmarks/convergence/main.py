"""Strategies that communicate less against ``AllReduce``: accuracy on MNIST, and loss of a transformer on Shakespeare.

Every strategy trains on the same rows, with the same global batch and number of steps, from the same initial weights.
A round is a seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import torch

from benchmarks.convergence.strategies import BASELINE, SETTINGS, Setting
from benchmarks.convergence.tasks import TASKS, Rows, Task
from benchmarks.measurements import run_measurements
from benchmarks.pairs import options
from sparkdl import LocalCluster
from sparkdl.io.merged_weights import merge_weights
from sparkdl.training.loop import Training

BAR = "at most 1"
ACCURACY = 0.96  # of every seed
EXCESS = 0.01  # of the mean loss over the baseline's


@dataclass(frozen=True)
class Result:
    """The scores of one strategy.

    Attributes:
        scores: an accuracy or a validation loss for each seed.
        baseline: the mean of the baseline's scores.
    """

    scores: tuple[float, ...]
    baseline: float

    @property
    def ratio(self) -> float:
        """The mean score over the baseline's."""
        return fmean(self.scores) / self.baseline

    def share(self, task: str) -> float:
        """The errors of the worst seed, or the excess of the loss, over the most that the bar permits."""
        if task == "digits":
            return (1 - min(self.scores)) / (1 - ACCURACY)
        return max(0.0, self.ratio - 1) / EXCESS


def trained(cluster: LocalCluster, task: Task, setting: Setting, seed: int) -> float:
    """The score of one training."""
    rows, validation = task.load()
    objective = task.objective(setting.optimizer(setting.lr))
    training = Training(
        objective, task.batch_size, task.epochs, seed=seed, strategy=setting.strategy, collate=task.collate
    )
    results = cluster.gang(training, rows, task.columns)
    return task.scored(merge_weights([result.weights for result in results]), validation)


def line(name: str, task: str, setting: Setting, result: Result) -> str:
    """A row of the table."""
    scores = "".join(f"{score:>9.4f}" for score in (*result.scores, fmean(result.scores)))
    share = result.share(task)
    verdict = "reached" if share <= 1 else f"missed, {share:.2f} of the bar"
    return f"{name:<26}{setting.lr:>8g}{scores}{result.ratio:>9.4f}  {verdict}"


def measure(name: str, args: argparse.Namespace) -> float | None:
    """The largest share of a strategy in a task; untuned strategies have no bar."""
    task, seeds = TASKS[name], range(args.rounds)
    if args.rows:
        task = replace(task, load=partial(first_rows, task, args.rows))
    print(f"{name:<26}{'lr':>8}" + "".join(f"{f'seed {seed}':>9}" for seed in seeds) + f"{'mean':>9}{'ratio':>9}")
    shares, baseline = [0.0], 0.0
    with LocalCluster(task.workers, threads=1) as cluster:
        for strategy, setting in SETTINGS[name].items():
            if strategy not in (BASELINE, *args.strategies):
                continue
            for lr in args.rates or [setting.lr]:
                chosen = replace(setting, lr=lr)
                scores = tuple(trained(cluster, task, chosen, seed) for seed in seeds)
                baseline = baseline or fmean(scores)
                result = Result(scores, baseline)
                print(line(strategy, name, chosen, result), flush=True)
                shares.append(result.share(name))
    return None if name == "untuned" else max(shares)


def first_rows(task: Task, rows: int) -> tuple[Rows, Rows]:
    """The first training rows, and all validation rows."""
    training, validation = task.load()
    return {name: values[:rows] for name, values in training.items()}, validation


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, rounds=3)
    parser.add_argument("--rows", type=int, help="training rows (default: all)")
    names = [*dict.fromkeys(name for settings in SETTINGS.values() for name in settings)]
    parser.add_argument("--strategies", nargs="+", choices=names, default=names, help="default: all")
    parser.add_argument("--rates", type=float, nargs="+", help="learning rates (default: each strategy's own)")
    torch.set_num_threads(1)
    run_measurements(parser, {name: partial(measure, name) for name in TASKS}, arguments, bar=BAR)


if __name__ == "__main__":
    main()
