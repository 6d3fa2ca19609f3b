"""A search on Adult, against TrainValidationSplit, bare processes, and a search without early termination.

Each measurement has its own bar; the result is the largest share of a bar.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.tuning import ParamGridBuilder, TrainValidationSplit
from pyspark.sql import DataFrame

from benchmarks.measurements import run_measurements
from benchmarks.pairs import Side, interleave, options, seconds
from benchmarks.search.bare import BATCH, RATES, adult, network
from benchmarks.session import materialised, session
from sparkdl import Range, SuccessiveHalving, TorchClassifier, TorchTuner
from sparkdl.ml.tuning.samplers import SuggestionRule
from sparkdl.ml.tuning.search_space import SearchSpace
from sparkdl.ml.tuning.trial import Trial

BAR = "at most 1"

FASTER, LOOPS, EPOCHS, SECONDS, WORSE, SUGGESTION = 1.8, 1.35, 0.36, 0.45, 1.02, 0.1


@contextmanager
def rows_of(args: argparse.Namespace) -> Iterator[tuple[DataFrame, int]]:
    """The rows in a session of two executors, and the number of features."""
    features, labels, valid = adult(Path(args.data))
    with session("search") as spark:
        columns = {"features": pa.array(list(features)), "label": pa.array(labels), "valid": pa.array(valid)}
        yield materialised(spark.createDataFrame(pa.table(columns)).repartition(2)), features.shape[1]


def classifier(width: int, args: argparse.Namespace, epochs: int, **values: Any) -> TorchClassifier:
    """The estimator of all measurements."""
    return TorchClassifier(
        model=partial(network, width, args.hidden),
        batchSize=BATCH,
        epochs=epochs,
        numWorkers=1,
        keepBest=False,
        **values,
    )


def grid(width: int, args: argparse.Namespace, epochs: int) -> TorchTuner:
    """A search of sixteen learning rates, each to its end."""
    return TorchTuner(
        estimator=classifier(width, args, epochs, validationIndicatorCol="valid"),
        paramSpace={"learningRate": RATES},
        sampler="grid",
        earlyTermination=None,
        parallelism=2,
    )


def measure_split(args: argparse.Namespace) -> float:
    """Sixteen trials of about a second, against ``TrainValidationSplit`` over the same maps."""
    with rows_of(args) as (rows, width):
        estimator = classifier(width, args, args.short)
        maps = ParamGridBuilder().addGrid(estimator.learningRate, RATES).build()
        evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
        settings: dict[str, Any] = {"estimatorParamMaps": maps, "evaluator": evaluator, "parallelism": 2}
        split = TrainValidationSplit(estimator=estimator, **settings)
        over = Side("TrainValidationSplit", lambda: seconds(lambda: split.fit(rows)))
        under = Side("TorchTuner", lambda: seconds(lambda: grid(width, args, args.short).fit(rows)))
        pairs = interleave(over, under, rounds=args.rounds)
    print(pairs.table("seconds"))
    print(f"{len(RATES)} trials: {pairs.ratio:.3f} times faster (bar: at least {FASTER})")
    return FASTER / pairs.ratio


def bare_processes(args: argparse.Namespace) -> None:
    """Two processes share the trials."""
    call = "from benchmarks.search.bare import bare; bare({!r}, {}, {}, {})"
    lines = [call.format(args.data, args.long, args.hidden, number) for number in range(2)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    processes = [subprocess.Popen([sys.executable, "-c", line], env=environment) for line in lines]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise RuntimeError("a bare process failed.")


def measure_loops(args: argparse.Namespace) -> float:
    """Sixteen trials of at least 5 s, against two bare processes that share them."""
    with rows_of(args) as (rows, width):
        grid(width, args, 1).fit(rows)
        over = Side("TorchTuner", lambda: seconds(lambda: grid(width, args, args.long).fit(rows)))
        under = Side("bare processes", lambda: seconds(lambda: bare_processes(args)))
        pairs = interleave(over, under, rounds=args.rounds, warmups=0)
    print(pairs.table("seconds"))
    print(f"{len(RATES)} trials: {pairs.ratio:.3f} times the time of bare processes (bar: at most {LOOPS})")
    return pairs.ratio / LOOPS


def measure_halving(args: argparse.Namespace) -> float:
    """27 trials of nine epochs, with early termination and without: epochs, seconds and the best value."""
    shares: list[list[float]] = []
    with rows_of(args) as (rows, width):
        for seed in range(args.seeds):
            pair = [halving(width, args, seed, early, rows) for early in (SuccessiveHalving(), None)]
            shares.append([halved / full for halved, full in zip(*pair, strict=True)])
            halved, full = pair
            print(
                f"seed {seed}: epochs {halved[0]:g} and {full[0]:g}, seconds {halved[1]:.1f} and {full[1]:.1f}, "
                f"value {halved[2]:.4f} and {full[2]:.4f}",
                flush=True,
            )
    epochs, elapsed, value = (fmean(column) for column in zip(*shares, strict=True))
    print(
        f"epochs {epochs:.3f} (bar: at most {EPOCHS}), seconds {elapsed:.3f} (bar: at most {SECONDS}), "
        f"value {value:.4f} (bar: at most {WORSE})"
    )
    return max(epochs / EPOCHS, elapsed / SECONDS, value / WORSE)


def halving(
    width: int, args: argparse.Namespace, seed: int, early: SuccessiveHalving | None, rows: DataFrame
) -> tuple[float, float, float]:
    """Epochs, seconds and the best value of a search."""
    wide = argparse.Namespace(**{**vars(args), "hidden": args.wide})
    tuner = TorchTuner(
        estimator=classifier(width, wide, 9, validationIndicatorCol="valid").setKeepBest(True),
        paramSpace={
            "learningRate": Range(1e-5, 1e-1, log=True),
            "optimizerArgs.weight_decay": Range(1e-6, 1e-2, log=True),
        },
        numTrials=27,
        sampler="random",
        seed=seed,
        earlyTermination=early,
        parallelism=2,
    )
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        model = tuner.setRunDir(folder).fit(rows)
        elapsed = time.perf_counter() - start
    return float(sum(trial["epochs"] for trial in model.trials)), elapsed, float(model.bestValue or math.nan)


def measure_suggestion(args: argparse.Namespace) -> float:
    """A suggestion of ``"tpe"`` with 200 trials in the table."""
    names: dict[str, Any] = {
        "learningRate": Range(1e-4, 1e-1, log=True),
        "batchSize": (64, 256, 1024),
        "epochs": Range(1, 9, step=1),
    }
    rule, table = SuggestionRule(SearchSpace(names), "tpe", 0, "min"), list[Trial]()
    for number in range(200):
        trial = rule.suggest(table[:20], number)
        assert trial is not None
        table.append(Trial(number, trial.params, "finished", {9: float(number % 7)}, 9))
    spent = [seconds(lambda: rule.suggest(table, 200)) for _ in range(9 * args.rounds)]
    print(f"a suggestion with {len(table)} trials: {sorted(spent)[len(spent) // 2]:.4f} s (bar: at most {SUGGESTION})")
    return sorted(spent)[len(spent) // 2] / SUGGESTION


MEASURES: dict[str, Callable[[argparse.Namespace], float | None]] = {
    "split": measure_split,
    "loops": measure_loops,
    "halving": measure_halving,
    "suggestion": measure_suggestion,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurements named on the command line."""
    parser = options(__doc__, rounds=3)
    data = Path(os.environ.get("SPARKDL_DATA", "data"), "adult.data")
    parser.add_argument("--data", default=str(data), help="UCI's adult.data (default %(default)s)")
    parser.add_argument("--hidden", type=int, default=256, help="width of both hidden layers (default %(default)s)")
    parser.add_argument("--wide", type=int, default=640, help="the same, in halving (default %(default)s)")
    parser.add_argument("--short", type=int, default=3, help="epochs of a trial in split (default %(default)s)")
    parser.add_argument("--long", type=int, default=18, help="epochs of a trial in loops (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="searches in halving (default %(default)s)")
    run_measurements(parser, MEASURES, arguments, bar=BAR)


if __name__ == "__main__":
    main()
