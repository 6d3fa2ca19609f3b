"""Driver memory while a model of 400 MB is averaged over 8 shards."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pyspark.sql import SparkSession
from torch import nn

from benchmarks.mlp import mlp
from benchmarks.session import samples
from sparkdl import SparkCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.loop import Rounds
from sparkdl.training.objective.objective import Objective

SHARDS = 8


@dataclass(frozen=True)
class Driver:
    """Memory of the driver's two processes, in bytes.

    Attributes:
        model: bytes of the weights.
        python: peak growth of Python's resident memory.
        jvm: peak growth of the JVM's resident memory.
        rounds: seconds of each round.
    """

    model: int
    python: int
    jvm: int
    rounds: Sequence[float]


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD without momentum, which would be another copy of the model on executors."""
    return torch.optim.SGD(parameters, lr=1e-3)


def average(spark: SparkSession, *, rounds: int, width: int) -> Driver:
    """Run ``ParallelSGD`` for this many rounds on 64 rows."""
    columns = Columns((InputColumn("features"),), InputColumn("label"))
    objective = Objective(partial(mlp, 28, width, width, 1), nn.MSELoss(), sgd)
    times: list[float] = []

    def listener(row: dict[str, Any]) -> None:
        times.append(row["seconds"])
        print(f"round {len(times)}: {times[-1]:.3g} s", file=sys.stderr, flush=True)

    assert spark.sparkContext._gateway is not None
    processes = os.getpid(), int(spark.sparkContext._gateway.proc.pid)
    frame = samples(spark, 64, partitions=2)
    with SparkCluster(spark, 2).map_reduce(frame, columns, num_shards=SHARDS) as jobs:
        before = [reset(each) for each in processes]
        state, _ = Rounds(ParallelSGD(rounds=rounds, shard_batch_size=64), objective, listener=listener).run(jobs)
        peaks = [peak(each) for each in processes]
    model = sum(tensor.nbytes for tensor in state["weights"].values())
    python, jvm = (high - low for high, low in zip(peaks, before, strict=True))
    return Driver(model, python, jvm, times)


def reset(process: int) -> int:
    """Reset the peak and return the resident memory, bytes."""
    Path(f"/proc/{process}/clear_refs").write_text("5", encoding="utf-8")
    time.sleep(0.1)
    return peak(process)


def peak(process: int) -> int:
    """Peak resident memory since ``reset``, bytes."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
