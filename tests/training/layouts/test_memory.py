"""No worker ever holds a sharded model whole, and a model that is too large for a worker says what to do."""

from __future__ import annotations

import resource
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
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.group.world import World
from sparkdl.cluster.local import LocalCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput
from sparkdl.training.cost.memory import ModelMemory
from sparkdl.training.layouts import Layout
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.layouts.sharded import Sharded
from sparkdl.training.loop import Training
from sparkdl.training.objective.objective import Objective
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


def fit(cluster: LocalCluster, layout: Layout, needed: int, folder: Path | None = None, epochs: int = 1) -> Any:
    """The weights of workers that may use 0.75 of the memory that one worker needs, with checkpoints in a folder."""
    numbers = np.random.default_rng(0)
    data = {"x": numbers.random((16, WIDTH), np.float32), "y": numbers.random((16, WIDTH), np.float32)}
    training, attempt = Training(OBJECTIVE, 8, epochs, layout=layout, keep_best=False), 0
    if folder is not None:
        checkpoints = Checkpoints(str(folder), run="one")
        attempt = checkpoints.next_attempt()
        training = replace(training, checkpointer=Checkpointer(checkpoints, CheckpointInterval.of("1 epoch")))
    return merged(cluster.gang(Limited(training, int(0.75 * needed)), data, COLUMNS, attempt=attempt))


def test_a_model_that_no_worker_can_hold_trains_resumes_and_saves(tmp_path):
    layout, needed = Sharded(init="modules"), NEEDED.trained + NEEDED.saved
    with LocalCluster(2, timeout=60) as two:
        fit(two, layout, needed, tmp_path)
        weights = fit(two, layout, needed, tmp_path, epochs=2)
    deep().load_state_dict(weights)


def test_a_worker_without_enough_memory_says_how_many_workers_have():
    remedy = r"Set layout=Sharded\(\) and numWorkers of at least 2"
    with LocalCluster(1) as one, pytest.raises(InvalidInput, match=remedy):
        fit(one, Replicated(), NEEDED.trained)
