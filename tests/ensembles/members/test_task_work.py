"""Tasks of members have the device, cores and GPUs of their estimators."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from sparkdl import Columns, InputColumn, TorchClassifier
from sparkdl.cluster.local_tasks import ShardedData
from sparkdl.cluster.tasks import mapped
from sparkdl.ensembles.members import fit
from sparkdl.ensembles.members.member import FittedMembers, Member, Plan
from sparkdl.ensembles.members.task_work import MemberWork
from sparkdl.ensembles.resampling.bootstrap import AllRows
from sparkdl.io.pickling import ship
from sparkdl.io.weights import pack_part

COLUMNS = Columns((InputColumn("x"),), InputColumn("y", "int64"), row_id=InputColumn("id", "int64"))


def world_of(world: Any, shard: Any) -> Any:
    weights = b"".join(pack_part({}, {}, {}, {}))
    return SimpleNamespace(weights=weights, history=[], report={"world": (world.size, world.device)})


def test_a_member_trains_on_the_device_of_its_task():
    rows = {"x": [[0.0], [1.0]], "y": [0, 1], "id": [0, 1]}
    [shard] = ShardedData(rows, COLUMNS, 1).shards()
    training: Any = world_of
    work, device = MemberWork({0: training}, {0: AllRows()}, None), torch.device("meta")
    result = mapped(ship(work), 0, shard, choose_device=lambda: device)
    assert result.note["state"]["report"] == {"world": (1, device)}


def test_members_of_one_job_have_equal_tasks(monkeypatch):
    jobs: list[list[int]] = []

    def fit_in_tasks(members: Any, rows: Any, plan: Any) -> FittedMembers:
        jobs.append([member.index for member in members])
        return FittedMembers([None] * len(members), jobs[-1], [0.0] * len(members))

    monkeypatch.setattr(fit, "fit_in_tasks", fit_in_tasks)
    monkeypatch.setattr(fit, "trains_in_task", lambda base, spark: True)  # as on executors with GPUs
    base = TorchClassifier(model=partial(nn.Linear, 2, 2))
    settings = [{}, {"device": "cuda"}, {"device": "cuda", "taskGpus": 0.5}, {"device": "cuda"}, {"seed": 1}]
    members = [Member(index, base.copy()._set(**given)) for index, given in enumerate(settings)]
    rows: Any = SimpleNamespace(sparkSession=None)
    assert fit.fit_members(members, rows, Plan()).indices == [0, 1, 2, 3, 4]
    assert jobs == [[0, 4], [1, 3], [2]]
