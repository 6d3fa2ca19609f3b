"""No worker ever holds a sharded model whole, and a model that is too large for a worker says what to do."""

from __future__ import annotations

import resource
import zlib
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.part_folder import PartFolder
from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.group.world import World
from sparkdl.cluster.local import LocalCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput
from sparkdl.io.merged_weights import merge_files
from sparkdl.training.cost.memory import ModelMemory
from sparkdl.training.layouts import Layout
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.layouts.sharded import Sharded
from sparkdl.training.layouts.table import Table, hashed_rows
from sparkdl.training.layouts.table_files import TableFiles
from sparkdl.training.loop import Training
from sparkdl.training.objective.objective import Objective
from sparkdl.training.spec import TrainingResult
from tests.results import merged

WIDTH, LAYERS = 1024, 40  # 42 million parameters
COLUMNS = Columns((InputColumn("x"),), InputColumn("y"))


def deep() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


OBJECTIVE = Objective(deep, nn.MSELoss(), partial(torch.optim.Adam, lr=1e-4))
NEEDED = ModelMemory.of(OBJECTIVE, OBJECTIVE.build(parameters=False), saves=True)


@dataclass(frozen=True)
class Limited:
    """A training in a process whose memory for data is limited to ``extra`` bytes more than it has."""

    training: Training
    extra: int

    def __call__(self, world: World, shard: Shard | None) -> object:
        torch.zeros(1).sum()
        before = resource.getrlimit(resource.RLIMIT_DATA)
        (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (int(line.split()[1]) * 1024 + self.extra, before[1]))
        try:
            return self.training(world, shard)
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, before)


def fit(
    cluster: LocalCluster,
    layout: Layout,
    needed: int,
    folder: Path | None = None,
    epochs: int = 1,
    objective: Objective = OBJECTIVE,
    **options: Any,
) -> list[TrainingResult]:
    """The results of workers that may use 0.75 of the memory that one worker needs, with checkpoints in a folder."""
    numbers = np.random.default_rng(0)
    data = {"x": numbers.random((16, WIDTH), np.float32), "y": numbers.random((16, WIDTH), np.float32)}
    training, attempt = Training(objective, 8, epochs, layout=layout, keep_best=False, **options), 0
    if folder is not None:
        checkpoints = Checkpoints(str(folder), run="one")
        attempt = checkpoints.next_attempt()
        training = replace(training, checkpointer=Checkpointer(checkpoints, CheckpointInterval.of("1 epoch")))
    results: list[TrainingResult] = cluster.gang(Limited(training, int(0.75 * needed)), data, COLUMNS, attempt=attempt)
    return results


@pytest.mark.slow
def test_a_model_that_no_worker_can_hold_trains_resumes_and_saves(tmp_path):
    layout, needed = Sharded(init="modules"), NEEDED.trained + NEEDED.saved
    with LocalCluster(2, timeout=60) as two:
        fit(two, layout, needed, tmp_path)
        weights = merged(fit(two, layout, needed, tmp_path, epochs=2))
    deep().load_state_dict(weights)


ROWS, ROW = 9_000_000, 16
ROWS_BYTES = ROWS * (ROW + 1) * 4  # rows, and the number that RowAdagrad keeps for each


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.head = Table(ROWS, ROW), nn.Linear(ROW, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.rows((x[:, 0] * ROWS).long()))
        return output


@pytest.mark.slow
def test_a_table_that_no_worker_can_hold_trains_saves_and_resumes(tmp_path):
    """Two workers have 0.75 of the memory of the table; checkpoints and the result need no second copy of rows."""
    objective, parts = Objective(Rows, nn.MSELoss()), SharedDirectory(str(tmp_path / "parts"))
    parts.announce()
    files = PartFolder(parts, str(tmp_path / "tables"))
    vectors, ids = [], torch.arange(0, ROWS, 1000)
    with LocalCluster(2, timeout=60) as two:
        for epochs in (1, 2):
            results = fit(two, Replicated(), ROWS_BYTES, tmp_path / "run", epochs, objective, part_writer=files)
            file = merge_files([files.part(one.weights) for one in results], str(tmp_path), files.rows)
            vectors.append(TableFiles(file.tables["rows"])(ids))
    expected = hashed_rows(zlib.crc32(b"rows"), ids, ROW, 0.01).float()
    assert (vectors[0] == expected).all(1).float().mean() > 0.9  # the rows of the batches differ
    with (
        LocalCluster(1) as one,
        pytest.raises(InvalidInput, match=r"The tables have 612 MB .* 306 MB with numWorkers=2"),
    ):
        fit(one, Replicated(), ROWS_BYTES, objective=objective, part_writer=files)


def test_a_worker_without_enough_memory_says_how_many_workers_have():
    remedy = r"Set layout=Sharded\(\) and numWorkers of at least 2"
    with LocalCluster(1) as one, pytest.raises(InvalidInput, match=remedy):
        fit(one, Replicated(), NEEDED.trained)
