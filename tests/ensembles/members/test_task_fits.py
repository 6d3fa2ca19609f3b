"""PyTorch members in the tasks of one job: what they are trained on, what is kept, what a failure costs."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from pyspark.sql import functions as F
from torch import nn

from sparkdl import TorchClassifier, TorchRegressor
from sparkdl.ensembles.members.fit import fit_members
from sparkdl.ensembles.members.member import Member, Plan, Rows
from sparkdl.ensembles.members.store import MemberStore
from sparkdl.ensembles.members.task_fits import fit_partitions
from sparkdl.ensembles.resampling.bootstrap import AllRows, Bootstrap, LeaveFoldOut, member_seed
from sparkdl.errors import InvalidInput, WorkerFailed
from tests.ml import nets

# What the report of a fit of its own tells beside; an ensemble is watched as a whole.
WATCHED = ("events", "events_dropped", "phases", "phases_by_rank", "skew_by_rank", "slowest_rank", "verdict")
ROWS = 240


@pytest.fixture(scope="module")
def frame(spark):
    """Three numbers, whose sign of a sum is the label, in five partitions."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(ROWS, 3))
    rows = [([float(value) for value in row], int(row.sum() > 0), index) for index, row in enumerate(x)]
    made = spark.createDataFrame(rows, "features array<double>, label long, id long").repartition(5, "id").cache()
    made.count()
    return made


@pytest.fixture
def rows(frame):
    return Rows(frame, "id")


def classifier(**given) -> TorchClassifier:
    wanted = {"model": nets.two_scores, "optimizer": partial(torch.optim.SGD, lr=0.1), "batchSize": 16, "epochs": 2}
    return TorchClassifier(**{**wanted, "idCol": "id", **given})


def members(count: int, base: TorchClassifier, draw=None) -> list[Member]:
    seeds = [member_seed(0, index) for index in range(count)]
    return [
        Member(index, base.copy({base.seed: seed}), Bootstrap(1.0, True, seed) if draw is None else draw)
        for index, seed in enumerate(seeds)
    ]


def weights(model) -> dict[str, torch.Tensor]:
    return model.module().state_dict()


def same(one, other) -> bool:
    one, other = weights(one), weights(other)
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_a_member_of_all_rows_has_the_bits_of_a_fit_of_its_own(frame, rows):
    base = classifier(model=nets.scores, epochs=3)
    found = fit_members(members(2, base, AllRows()), rows, Plan())
    for index, model in enumerate(found.models):
        alone = base.copy({base.seed: member_seed(0, index)}).fit(frame)
        assert same(model, alone)
        assert [row["loss"] for row in model.history] == [row["loss"] for row in alone.history]
        assert (model.report["rows"], model.report["workers"]) == (ROWS, [1])
        assert set(alone.report) - set(model.report) <= {"rows_by_rank", "skew", *WATCHED}
    assert not same(*found.models)
    assert (found.trained, found.restored, found.indices) == ([0, 1], [], [0, 1])
    assert all(seconds > 0 for seconds in found.seconds)


@pytest.mark.slow
def test_members_do_not_depend_on_partitions_or_on_which_others_there_are(spark, frame, rows):
    wanted = members(4, classifier())
    found = fit_members(wanted, rows, Plan()).models
    other = fit_members(wanted[2:], replace(rows, frame=frame.coalesce(1).repartition(3)), Plan()).models
    assert same(found[2], other[0])
    assert same(found[3], other[1])


class Ids(nn.Module):
    """Leaves a file for each row that it is trained on, by the first number."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.inner, self.folder = nn.Linear(1, 2), folder

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            for value in x[:, 0].tolist():
                with Path(self.folder, str(int(value))).open("a") as file:
                    file.write("x")
        return self.inner(x)


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [
        Bootstrap(1.0, True, 5),
        pytest.param(Bootstrap(0.4, False, 5), marks=pytest.mark.slow),
        LeaveFoldOut(1, 4, 5),
        pytest.param(Bootstrap(2.5, True, 9), marks=pytest.mark.slow),
    ],
)
def test_a_member_is_given_the_rows_of_its_draw(frame, tmp_path, draw):
    numbers = Rows(frame.withColumn("features", F.array(F.col("id").cast("double"))), "id")
    base = classifier(model=partial(Ids, str(tmp_path)), epochs=1)
    fit_members(members(1, base, draw), numbers, Plan())
    found = [len(path.read_text()) if path.exists() else 0 for path in (tmp_path / str(row) for row in range(ROWS))]
    assert found == draw.counts(np.arange(ROWS)).tolist()


def test_validation_rows_stay_as_they_are_in_a_bootstrap(frame, tmp_path):
    held = frame.withColumn("held", F.col("id") % 4 == 0)
    base = classifier(validationIndicatorCol="held")
    [model] = fit_members(members(1, base), Rows(held, "id"), Plan()).models
    counts = Bootstrap(1.0, True, member_seed(0, 0)).counts(np.arange(ROWS))
    counts[::4] = 1
    assert model.report["rows"] == counts.sum()
    assert "valid_loss" in model.history[-1]


@pytest.mark.slow
def test_members_of_several_kinds_and_columns_come_in_their_order(frame, rows):
    numbers = TorchRegressor(
        model=nets.column, labelCol="label", idCol="id", optimizer=partial(torch.optim.SGD, lr=0.01)
    )
    base = classifier()
    mixed = [Member(3, base), Member(1, numbers), Member(2, base)]
    found = fit_members(mixed, rows, Plan())
    assert [model._kind for model in found.models] == ["classifier", "regressor", "classifier"]
    assert (found.indices, found.trained) == ([3, 1, 2], [1, 2, 3])


@pytest.mark.slow
def test_a_finished_member_is_never_trained_again(rows, tmp_path):
    wanted, kept = members(4, classifier()), MemberStore(str(tmp_path))
    kept.begin({"what": "test"})
    first = fit_members(wanted[:3], rows, Plan(kept))
    later = MemberStore(str(tmp_path))
    later.begin({"what": "test"})
    again = fit_members(wanted, rows, Plan(later))
    assert (first.trained, again.trained, again.restored) == ([0, 1, 2], [3], [0, 1, 2])
    assert all(same(one, other) for one, other in zip(first.models, again.models, strict=False))
    assert again.seconds[:3] == first.seconds
    assert again.models[0].history == first.models[0].history


class Failing(nn.Module):
    """Raises, or kills its process, where a seed says so and a file is not there yet."""

    def __init__(self, folder: str, *, kill: bool) -> None:
        super().__init__()
        self.inner, self.folder, self.kill = nn.Linear(3, 2), folder, kill

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mark = Path(self.folder, str(torch.initial_seed()))
        if self.training and not (mark.exists() and "done" in mark.read_text()):
            with mark.open("a") as file:
                file.write("began")
            if len([*Path(self.folder).iterdir()]) == 2 and not Path(self.folder, "struck").exists():
                Path(self.folder, "struck").touch()
                if self.kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ValueError("struck")
            with mark.open("a") as file:
                file.write("done")
        return self.inner(x)


@pytest.mark.slow
@pytest.mark.chaos
def test_a_member_that_fails_is_named_and_the_others_are_kept(rows, tmp_path):
    marks, kept = tmp_path / "marks", MemberStore(str(tmp_path / "run"))
    marks.mkdir()
    kept.begin({})
    wanted = members(4, classifier(model=partial(Failing, str(marks), kill=False)))
    with pytest.raises(
        WorkerFailed, match=r"member \d: .*struck.* 3 of 4 members are finished and 3 are kept"
    ) as caught:
        fit_members(wanted, rows, Plan(kept))
    failed = caught.value.rank
    later = MemberStore(str(tmp_path / "run"))
    later.begin({})
    again = fit_members(wanted, rows, Plan(later))
    assert again.trained == [failed]
    for mark in marks.iterdir():
        mark.unlink()
    with pytest.raises(WorkerFailed, match="nothing is kept without runDir"):
        fit_members(wanted, rows, Plan())


@pytest.mark.slow
@pytest.mark.chaos
def test_a_task_that_dies_costs_its_member_alone(rows, tmp_path):
    marks, kept = tmp_path / "marks", MemberStore(str(tmp_path / "run"))
    marks.mkdir()
    kept.begin({})
    found = fit_members(members(4, classifier(model=partial(Failing, str(marks), kill=True))), rows, Plan(kept))
    assert found.trained == [0, 1, 2, 3]
    began = [path.read_text() for path in marks.iterdir() if path.name != "struck"]
    assert sorted(began) == ["beganbegandone", "begandone", "begandone", "begandone"]


@pytest.mark.slow
def test_partitions_have_members_of_their_own(spark, tmp_path):
    def numbers(count: int) -> Rows:
        made = spark.range(0, count, 1, 4).withColumn("features", F.array(F.col("id").cast("double")))
        return Rows(made.withColumn("label", F.col("id") % 2), "id")

    base, marks = classifier(epochs=1), tmp_path / "marks"
    marks.mkdir()
    make = partial(_partition_member, base.copy({base.model: partial(Ids, str(marks))}))
    kept = MemberStore(str(tmp_path / "run"))
    kept.begin({})
    found = fit_partitions(make, numbers(40), Plan(kept))
    assert [model.report["rows"] for model in found.models] == [10] * 4
    assert [len(path.read_text()) for path in marks.iterdir()] == [1] * 40
    later = MemberStore(str(tmp_path / "run"))
    later.begin({})
    assert fit_partitions(make, numbers(40), Plan(later)).restored == [0, 1, 2, 3]
    with pytest.raises(InvalidInput, match="other rows than partition"):
        fit_partitions(make, numbers(44), Plan(later))
    with pytest.warns(UserWarning, match="2 of 4 partitions have no rows"):
        assert len(fit_partitions(make, numbers(2), Plan()).models) == 2


def _partition_member(base: TorchClassifier, index: int) -> Member:
    return Member(index, base.copy({base.seed: member_seed(0, index)}))


@pytest.mark.slow
def test_rows_that_cannot_be_used_are_refused_before_any_member_is_trained(frame, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    wrong = Rows(frame.withColumn("label", F.col("label") * 0.5), "id")
    with pytest.raises(InvalidInput, match="label"):
        fit_members(members(3, classifier(model=partial(Failing, str(marks), kill=False))), wrong, Plan())
    assert not [*marks.iterdir()]
    with pytest.raises(InvalidInput, match="no rows"):
        fit_members(members(1, classifier(), Bootstrap(1e-9, False, 1)), Rows(frame, "id"), Plan())


def test_settings_of_a_gang_are_ignored_with_a_warning(rows):
    with pytest.warns(UserWarning, match="maxRestarts is 7, of which a member that trains in a task makes no use"):
        fit_members(members(1, classifier(maxRestarts=7)), rows, Plan())
