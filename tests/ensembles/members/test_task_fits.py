"""PyTorch members in the tasks of one job: their rows, their store, their failures."""

from __future__ import annotations

import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from torch import nn

from sparkdl import Bagging, TorchClassifier, TorchRegressor
from sparkdl.ensembles.members.fit import fit_members
from sparkdl.ensembles.members.member import Member, Plan
from sparkdl.ensembles.members.store import MemberStore
from sparkdl.ensembles.members.task_fits import fit_partitions
from sparkdl.ensembles.resampling.bootstrap import AllRows, Bootstrap, LeaveFoldOut, member_seed
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.spark.columns import ROW_ID
from tests import sessions
from tests.ml import nets

# Report entries of a single fit alone; an ensemble has one monitor for all members.
WATCHED = ("events", "events_dropped", "phases", "phases_by_rank", "skew_by_rank", "slowest_rank", "verdict")
WATCHED += ("startup", "startup_seconds")
ROWS = 240

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def frame(spark):
    """Three numbers and the sign of their sum, in five partitions."""
    x = np.random.default_rng(0).normal(size=(ROWS, 3))
    made = sessions.frame({"features": x, "label": (x.sum(1) > 0).astype(np.int64), "id": np.arange(ROWS)})
    return made.withColumn(ROW_ID, F.col("id")).repartition(5, "id").cache()


def classifier(**settings) -> TorchClassifier:
    network = {"model": nets.two_scores, "optimizer": partial(torch.optim.SGD, lr=0.1), "numWorkers": 1}
    return TorchClassifier(**network | {"batchSize": 16, "epochs": 2, "idCol": "id"} | settings)


def members(count: int, base: TorchClassifier, draw=None) -> list[Member]:
    seeds = enumerate(member_seed(0, index) for index in range(count))
    return [Member(at, base.copy({base.seed: seed}), draw or Bootstrap(1.0, True, seed)) for at, seed in seeds]


def same(one, other) -> bool:
    one, other = one.module().state_dict(), other.module().state_dict()
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def store(folder) -> MemberStore:
    """A new driver's store."""
    new = MemberStore(str(folder))
    new.begin({})
    return new


def test_members_equal_single_fits_in_any_partitions_and_order(frame):
    base = classifier(model=nets.scores, epochs=3)
    slow = partial(torch.optim.SGD, lr=0.01)
    numbers = TorchRegressor(model=nets.column, labelCol="label", idCol="id", optimizer=slow)
    wanted = members(2, base, AllRows())
    found = fit_members([*wanted, Member(3, numbers), *members(3, base)[2:]], frame, Plan())
    for model, member in zip(found.models[:2], wanted, strict=True):
        alone = member.estimator.fit(frame)
        assert same(model, alone)
        assert [row["loss"] for row in model.history] == [row["loss"] for row in alone.history]
        assert (model.report["rows"], model.report["workers"]) == (ROWS, [1])
        assert set(alone.report) - set(model.report) <= {"rows_by_rank", "skew", *WATCHED}
    assert not same(*found.models[:2])
    assert [model._kind for model in found.models] == [*("classifier", "classifier", "regressor", "classifier")]
    assert (found.trained, found.restored, found.indices) == ([0, 1, 2, 3], [], [0, 1, 3, 2])
    assert all(seconds > 0 for seconds in found.seconds)
    other = fit_members(members(3, base)[2:], frame.coalesce(1).repartition(3), Plan())
    assert same(found.models[3], other.models[0])


class Ids(nn.Module):
    """Appends to a file for each training row, named by the first number."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.inner, self.folder = nn.Linear(1, 2), folder

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            for value in x[:, 0].tolist():
                with Path(self.folder, str(int(value))).open("a") as file:
                    file.write("x")
        return self.inner(x)


@pytest.mark.parametrize("draw", [Bootstrap(2.5, True, 9), LeaveFoldOut(1, 4, 5)])
def test_member_trains_on_the_rows_of_its_draw(frame, tmp_path, draw):
    numbers = frame.withColumn("features", F.array(F.col("id").cast("double")))
    base = classifier(model=partial(Ids, str(tmp_path)), epochs=1)
    fit_members(members(1, base, draw), numbers, Plan())
    found = [len(path.read_text()) if path.exists() else 0 for path in (tmp_path / str(row) for row in range(ROWS))]
    assert found == draw.counts(np.arange(ROWS)).tolist()


def test_bootstrap_keeps_each_validation_row_once(frame):
    held = frame.withColumn("held", F.col("id") % 4 == 0)
    base = classifier(validationIndicatorCol="held", maxRestarts=7)
    with pytest.warns(UserWarning, match="maxRestarts is 7; members that train in tasks ignore it"):
        [model] = fit_members(members(1, base), held, Plan()).models
    counts = Bootstrap(1.0, True, member_seed(0, 0)).counts(np.arange(ROWS))
    counts[::4] = 1
    assert model.report["rows"] == counts.sum()
    assert "valid_loss" in model.history[-1]


def test_validation_fraction_and_class_weights_equal_columns(frame):
    base = classifier(validationFraction=0.25, classWeights=[0.5, 2])
    bagged = Bagging(base=base, numModels=2).fit(frame.drop(ROW_ID)).models
    hashed = F.xxhash64(F.lit("validationFraction"), F.lit(False), F.col("id"))
    weight = F.when(F.col("label") == 1, 2.0).otherwise(0.5)
    named = frame.withColumns({"held": hashed < F.lit(-(2**62)), "w": weight, "hash": hashed})
    by_columns = fit_members(members(2, classifier(validationIndicatorCol="held", weightCol="w")), named, Plan()).models
    for one, two in zip(bagged, by_columns, strict=True):
        assert same(one, two)
        assert one.history[-1]["valid_loss"] == two.history[-1]["valid_loss"]
        assert one.report["class_weights"] == [0.5, 2.0]
    # Members of one call may have other fractions and weights.
    other = members(2, classifier(validationFraction=0.5, classWeights="balanced"))[1]
    first, second = fit_members([*members(1, base), other], frame, Plan()).models
    assert same(first, bagged[0])
    training = [row["count"] for row in named.where("hash >= 0").groupBy("label").count().orderBy("label").collect()]
    assert second.report["class_weights"] == [sum(training) / (2 * count) for count in training]


class Failing(nn.Module):
    """The third member to begin, when one of two is trained, raises an error or kills its task, once."""

    def __init__(self, folder: str, *, kill: bool = False) -> None:
        super().__init__()
        self.inner, self.folder, self.kill, self.begins = nn.Linear(3, 2), folder, kill, True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.begins:
            self.begins, seed, log = False, str(torch.initial_seed()), Path(self.folder, "begun")
            with log.open("a") as file:
                file.write(f"{seed}\n")
            begun = log.read_text().split()
            if begun.index(seed) == 2 and begun.count(seed) == 1:
                if self.kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ValueError("struck")
        return self.inner(x)


@pytest.mark.chaos
def test_failed_member_is_named_and_only_it_trains_again(frame, tmp_path):
    wanted = members(4, classifier(model=partial(Failing, str(tmp_path))))
    message = r"member \d: .*struck.* 3 of 4 members are trained and 3 are stored"
    with pytest.raises(WorkerFailed, match=message) as caught:
        fit_members(wanted, frame, Plan(store(tmp_path / "run")))
    found = fit_members(wanted, frame, Plan(store(tmp_path / "run")))
    assert found.trained == [caught.value.rank]
    again = fit_members(wanted, frame, Plan(store(tmp_path / "run")))
    assert (again.trained, again.restored, again.seconds) == ([], [0, 1, 2, 3], found.seconds)
    assert all(same(one, other) for one, other in zip(found.models, again.models, strict=True))
    assert [model.history for model in again.models] == [model.history for model in found.models]


@pytest.mark.chaos
def test_killed_task_costs_only_its_member(frame, tmp_path):
    wanted = members(4, classifier(model=partial(Failing, str(tmp_path), kill=True)))
    assert fit_members(wanted, frame, Plan(store(tmp_path / "run"))).trained == [0, 1, 2, 3]
    assert sorted(Counter((tmp_path / "begun").read_text().split()).values()) == [1, 1, 1, 2]


def test_partitions_have_their_own_members(spark, tmp_path):
    def numbers(count: int) -> DataFrame:
        made = spark.range(0, count, 1, 4).withColumn("features", F.array(F.col("id").cast("double")))
        return made.withColumn("label", F.col("id") % 2).withColumn(ROW_ID, F.col("id"))

    def make(index: int) -> Member:
        base = classifier(model=partial(Ids, str(marks)), epochs=1)
        return Member(index, base.copy({base.seed: member_seed(0, index)}))

    marks = tmp_path / "marks"
    marks.mkdir()
    found = fit_partitions(make, numbers(40), Plan(store(tmp_path / "run")))
    assert [model.report["rows"] for model in found.models] == [10] * 4
    assert [len(path.read_text()) for path in marks.iterdir()] == [1] * 40
    later = Plan(store(tmp_path / "run"))
    assert fit_partitions(make, numbers(40), later).restored == [0, 1, 2, 3]
    with pytest.raises(InvalidInput, match="other rows than partition"):
        fit_partitions(make, numbers(44), later)
    with pytest.warns(UserWarning, match="2 of 4 partitions have no rows"):
        assert len(fit_partitions(make, numbers(2), Plan()).models) == 2


def test_invalid_rows_raise_before_any_training(frame, tmp_path):
    wrong = frame.withColumn("label", F.col("label") * 0.5)
    with pytest.raises(InvalidInput, match="label"):
        fit_members(members(3, classifier(model=partial(Failing, str(tmp_path)))), wrong, Plan())
    assert not [*tmp_path.iterdir()]
    with pytest.raises(InvalidInput, match="no rows"):
        fit_members(members(1, classifier(), Bootstrap(1e-9, False, 1)), frame, Plan())
