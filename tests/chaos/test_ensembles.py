"""Members that a fit keeps survive a second driver, damage and a full disk."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl import TorchClassifier
from sparkdl.cluster.inline import InlineCluster
from sparkdl.ensembles.members import task_work
from sparkdl.ensembles.members.member import Member, Plan
from sparkdl.ensembles.members.store import MemberStore
from sparkdl.ensembles.members.task_fits import fit_in_tasks
from sparkdl.ensembles.resampling.bootstrap import Bootstrap, member_seed
from sparkdl.errors import Fenced, WorkerFailed
from sparkdl.io.files import Folder
from sparkdl.ml.trials import task_fit
from sparkdl.spark.columns import ROW_ID
from tests.chaos.runs import Momentum
from tests.faults import flip, tear

pytestmark = pytest.mark.chaos

ALL = [0, 1, 2, 3]
WHOLE = ["ensemble.json", *(f"members/member-{index:05d}" for index in ALL)]
CONFIGURATION = {"ensemble": "Bagging", "rows": "60 rows", "base 0": {"epochs": "1"}}

events: dict[int, Callable[[], Any]] = {}
"""Actions by number of members that have begun."""


class Net(nn.Module):
    """Two scores; lets an event happen in the first batch of training."""

    begun = 0

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.first = nn.Linear(3, 2), True

    def forward(self, x):
        if self.training and self.first:
            self.first = False
            Net.begun += 1
            events.pop(Net.begun, lambda: None)()
        return self.inner(x)


class Here:
    """Stands for Spark's cluster: tasks run in this process, one after the other."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def map_reduce(self, data: Any, columns: Any, *, shuffle: bool, listener: Any = None) -> Any:
        return InlineCluster().map_reduce(data.arrays, columns, num_shards=2, shuffle=shuffle, listener=listener)


def fit(folder: Path) -> tuple[list[bytes], list[int]]:
    """Train in a directory, or resume: the members' weights, and which were trained."""
    x = np.random.default_rng(2).normal(size=(60, 3))
    arrays = {"id": np.arange(60), ROW_ID: np.arange(60), "x": x, "label": (x.sum(1) > 0).astype(np.int64)}
    options = {"optimizer": partial(Momentum, lr=0.1), "batchSize": 10, "epochs": 1}
    base = TorchClassifier(model=Net, inputCols=["x"], idCol="id", **options)
    seeds = {index: member_seed(0, index) for index in ALL}
    members = [Member(at, base.copy({base.seed: seed}), Bootstrap(1.0, True, seed)) for at, seed in seeds.items()]
    store = MemberStore(str(folder))
    store.begin(CONFIGURATION)
    try:
        found = fit_in_tasks(members, SimpleNamespace(arrays=arrays, sparkSession=None), Plan(store))  # type: ignore[arg-type]
    finally:
        store.withdraw()
    assert sorted([*found.trained, *found.restored]) == ALL
    tensors = [model.module().state_dict().values() for model in found.models]
    return [torch.cat([each.flatten() for each in member]).numpy().tobytes() for member in tensors], found.trained


def test_kept_members_survive_second_driver_damage_and_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(task_fit, "SparkCluster", Here)
    monkeypatch.setattr(task_work, "POLL_SECONDS", 0.0)
    quiet, trained = fit(tmp_path / "quiet")
    assert trained == ALL

    # While the first driver trains its third member, a second one trains what is missing.
    run, second = tmp_path / "run", []
    events[Net.begun + 3] = lambda: second.append(fit(run))
    with pytest.raises(Fenced, match=r"member 2: another fit has begun to store members in .* fit again"):
        fit(run)
    assert second == [(quiet, [2, 3])]

    # Damaged members are trained again, and no others.
    flip(run / "members/member-00001")
    tear(run / "members/member-00003")
    with pytest.warns(UserWarning, match=r"the stored member 1, .*cannot be used; fit trains it again"):
        assert fit(run) == (quiet, [1, 3])

    # A write that fails once is repeated; a disk that stays full costs the member. A partial file is no member.
    (run / "members/member-00001").unlink()
    (run / "members/member-00002").unlink()
    write, failures = Folder.write, {"member-00001": 1, "member-00002": 100}

    def full(folder: Folder, name: str, *data: Any) -> None:
        if failures.get(name):
            failures[name] -= 1
            Path(folder.at(f"{name}.abc.tmp")).write_bytes(bytes(data[0]))
            raise OSError(errno.ENOSPC, "No space left on device")
        write(folder, name, *data)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write", full)
        message = r"member 2: .*cannot be stored.*No space left on device.*3 of 4 members"
        with pytest.raises(WorkerFailed, match=message):
            fit(run)
    assert failures["member-00001"] == 0
    assert fit(run) == (quiet, [2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit(run) == (quiet, [])
    assert sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()) == WHOLE
