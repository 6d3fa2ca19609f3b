"""Memory of workers that train a large table, and of scoring with its files."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import save
from torch import Tensor, nn

from benchmarks.memory.main import anonymous
from benchmarks.resume.main import MemoryWatch
from sparkdl import LocalCluster, Objective, Table
from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.part_folder import PartFolder
from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.group.world import World
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import Shard
from sparkdl.io.weights_file import WeightsFile, rows_file
from sparkdl.serving.model_cache import CachedModel
from sparkdl.serving.outputs import Outputs
from sparkdl.serving.scorer import Scorer, restored
from sparkdl.training.loop import Training

WIDTH, IDS = 16, 26
BATCHES, BATCH = 20, 10_000  # rows that are scored


class Bags(nn.Module):
    """The sum of the vectors of a row's ids, and a linear layer."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.rows, self.head = Table(size, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, ids: Tensor) -> Tensor:
        output: Tensor = self.head(self.rows(ids).sum(1)).squeeze(1)
        return output


def worker_peak(size: int, folder: str) -> int:
    """Largest anonymous bytes of two workers in a fit of ``size`` rows, with a checkpoint, in new processes."""
    numbers, count = np.random.default_rng(0), 4000
    data = {"ids": numbers.integers(0, size, (count, IDS)), "label": numbers.random(count, np.float32)}
    parts = SharedDirectory(f"{folder}/parts")
    parts.announce()
    training = Training(
        Objective(partial(Bags, size), nn.MSELoss()),
        batch_size=1000,
        keep_best=False,
        checkpointer=Checkpointer(Checkpoints(f"{folder}/run", run="benchmark"), CheckpointInterval.of(2)),
        result_limit=1,  # so that the small table goes to files as well
        part_writer=PartFolder(parts, f"{folder}/tables"),
    )
    columns = Columns((InputColumn("ids", "int64"),), InputColumn("label"))
    with LocalCluster(2, threads=1) as cluster, MemoryWatch() as watch:
        cluster.gang(training, data, columns, listener=watch)
    return max(watch.peaks.values())


def saved(size: int, folder: str) -> WeightsFile:
    """Weights whose table of ``size`` rows is in two files."""
    files = []
    for rank in range(2):
        rows = torch.rand(len(range(rank, size, 2)), WIDTH)
        files.append(WeightsFile.write(f"{folder}/{size}-{rank}", rows_file(rows)))
    head = nn.Linear(WIDTH, 1).state_dict(prefix="head.")
    weights = WeightsFile.write(f"{folder}/{size}", [save(head, {"aliases": "{}"})])
    return WeightsFile(weights.uri, weights.size, weights.sha256, {"rows": tuple(files)})


@dataclass(frozen=True)
class Scoring:
    """Scores rows in a new process twice.

    Attributes:
        weights: of ``saved``.
        size: rows of the table.
        mapped: whether the table's files are mapped, or read into memory.
    """

    weights: WeightsFile
    size: int
    mapped: bool

    def __call__(self, world: World, shard: Shard | None) -> tuple[float, int]:
        """Rows per second of the second time, and anonymous bytes after it."""
        factory = partial(Bags, self.size)
        columns = Columns((InputColumn("ids", "int64"),))
        scorer = Scorer(factory, self.weights, Outputs("regressor", None, scalar=True), "fp32", columns)
        loaded = CachedModel(restored(factory, self.weights, "fp32", mapped=self.mapped))
        numbers = np.random.default_rng(0)
        batches = []
        for _ in range(BATCHES):
            ids = pa.array((numbers.random(BATCH * IDS) ** 3 * self.size).astype(np.int64))
            offsets = pa.array(np.arange(BATCH + 1, dtype=np.int32) * IDS)
            batches.append((pa.ListArray.from_arrays(offsets, ids),))
        seconds = 0.0
        for _ in range(2):
            start = time.perf_counter()
            for _ in scorer.scores(batches, loaded):
                continue
            seconds = time.perf_counter() - start
        return BATCHES * BATCH / seconds, anonymous(os.getpid())


def scored(weights: WeightsFile, size: int, *, mapped: bool) -> tuple[float, int]:
    """The figures of ``Scoring`` in a new process."""
    with LocalCluster(1, threads=1) as cluster:
        figures: tuple[float, int] = cluster.gang(Scoring(weights, size, mapped))[0]
    return figures


def folder() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder."""
    return tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-", dir=Path.home())
