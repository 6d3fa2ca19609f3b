"""Finished members in a directory: whole or not there, of one ensemble, and seen by all hosts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings

import cloudpickle
import pytest
import torch
from pyspark.ml import Model, Pipeline, PipelineModel
from pyspark.ml.classification import LogisticRegression, LogisticRegressionModel
from pyspark.ml.feature import VectorAssembler
from torch import nn

from sparkdl import TorchModel
from sparkdl.ensembles.members import saved_models
from sparkdl.ensembles.members.store import MemberStore
from sparkdl.errors import Fenced, InvalidInput
from sparkdl.io import files
from sparkdl.io.weights import pack
from tests.faults.damage import flip, tear
from tests.ml import nets
from tests.object_store import object_store
from tests.sessions import ROOT

GIVEN = {"class": "Bagging", "seed": 3, "rows": "100 rows, 12345", "base": {"maxDepth": 5, "labelCol": "y"}}
STATE = {"weights": b"abc", "history": [{"epoch": 1, "loss": 0.25}], "mask": torch.tensor([True, False])}


def begun(directory, **changed) -> MemberStore:
    kept = MemberStore(str(directory))
    kept.begin({**GIVEN, **changed})
    return kept


def same(one, other):
    return {**one, "mask": one["mask"].tolist()} == {**other, "mask": other["mask"].tolist()}


# ---- whose members they are --------------------------------------------------------------------------------------


def test_the_same_ensemble_goes_on(tmp_path):
    begun(tmp_path).write(5, STATE)
    assert json.loads((tmp_path / "ensemble.json").read_text())["configuration"] == GIVEN
    found = begun(tmp_path).read(5)
    assert found is not None
    assert same(found, STATE)


def test_tuples_and_lists_are_the_same_configuration(tmp_path):
    begun(tmp_path, sizes=(1, 2))
    begun(tmp_path, sizes=[1, 2])


def test_another_ensemble_is_refused_and_says_what_differs(tmp_path):
    begun(tmp_path)
    with pytest.raises(InvalidInput) as refused:
        begun(tmp_path, seed=4, base={"maxDepth": 7, "labelCol": "y"}, folds=2)
    message = refused.value.message
    assert "seed was 3 and is 4" in message
    assert "base.maxDepth was 5 and is 7" in message
    assert "folds was not there and is 2" in message
    assert "another runDir" in message
    assert "labelCol" not in message
    assert "rows was" not in message
    assert json.loads((tmp_path / "ensemble.json").read_text())["configuration"] == GIVEN


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1, "configuration": {}}', '{"format": 2}'])
def test_a_damaged_configuration_is_refused(text, tmp_path):
    begun(tmp_path)
    (tmp_path / "ensemble.json").write_text(text)
    with pytest.raises(InvalidInput, match=r"ensemble\.json (is damaged|has the format).*another runDir"):
        begun(tmp_path)


def test_members_of_nobody_are_refused(tmp_path):
    begun(tmp_path).write(0, STATE)
    (tmp_path / "ensemble.json").unlink()
    with pytest.raises(InvalidInput, match=r"ensemble\.json, which says whose they are, is not there"):
        begun(tmp_path)


# ---- members of tasks --------------------------------------------------------------------------------------------


def test_what_was_written_is_read_by_whoever_has_a_copy(tmp_path):
    kept = begun(tmp_path / "run")
    copy = cloudpickle.loads(cloudpickle.dumps(kept))
    assert copy == kept
    copy.write(12, STATE)
    assert same(kept.read(12), STATE)
    assert kept.read(11) is None
    assert (tmp_path / "run/members/member-00012").is_file()


def test_two_tasks_that_write_the_same_member_write_the_same_bits(tmp_path):
    kept = begun(tmp_path)
    kept.write(1, STATE)
    first = (tmp_path / "members/member-00001").read_bytes()
    kept.write(1, STATE)
    assert (tmp_path / "members/member-00001").read_bytes() == first


def test_a_directory_that_is_not_the_drivers_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"not share the driver's directory .*set runDir to a directory that all"):
        MemberStore(str(tmp_path)).write(0, STATE)
    assert not list(tmp_path.iterdir())


def test_a_driver_that_is_not_the_last_to_begin_keeps_nothing(tmp_path):
    first, second = begun(tmp_path), begun(tmp_path)
    with pytest.raises(Fenced, match="another fit has begun to keep members in"):
        first.write(0, STATE)
    second.end()
    for ended in (first, second):
        with pytest.raises(Fenced, match="another fit has begun to keep members in"):
            ended.write(0, STATE)
    assert second.read(0) is None


def test_a_driver_takes_away_what_others_left(tmp_path):
    begun(tmp_path)
    members = tmp_path / "members"
    (members / "model-00001.abc.tmp" / "model").mkdir(parents=True)
    (members / "member-00001.abc.tmp").write_bytes(b"")
    kept = begun(tmp_path)
    assert [path.name for path in members.iterdir()] == [f"visible-{kept.token}"]
    kept.end()
    assert not list(members.iterdir())


@pytest.mark.parametrize("damage", [flip, tear, lambda path: os.truncate(path, 0)], ids=["flip", "tear", "empty"])
def test_a_damaged_member_is_no_member(damage, tmp_path):
    kept = begun(tmp_path)
    kept.write(7, STATE)
    damage(tmp_path / "members/member-00007")
    with pytest.warns(UserWarning, match=r"member 7, .*member-00007, cannot be used, and it is trained again"):
        assert kept.read(7) is None
    kept.write(7, STATE)
    assert same(kept.read(7), STATE)


def test_a_member_under_another_name_is_no_member(tmp_path):
    kept = begun(tmp_path)
    kept.write(7, STATE)
    (tmp_path / "members/member-00007").rename(tmp_path / "members/member-00008")
    with pytest.warns(UserWarning, match="not what a task has written of this member"):
        assert kept.read(8) is None


_KILLED = """
import os, sys
from pyarrow import fs
from sparkdl.io import files
from sparkdl.ensembles.members.store import MemberStore
kept = MemberStore(sys.argv[1], token=sys.argv[2])
synced = files._sync
def killed(path):
    synced(path)
    os.kill(os.getpid(), 9)
files._sync = killed
kept.write(3, {"weights": b"abc" * 1000})
"""


@pytest.mark.chaos
def test_a_task_that_is_killed_between_writing_and_renaming_leaves_no_member(tmp_path):
    kept = begun(tmp_path)
    command = [sys.executable, "-c", _KILLED, str(tmp_path), kept.token]
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "members").glob("member-*")] != ["member-00003"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kept.read(3) is None
        kept = begun(tmp_path)
    assert not list((tmp_path / "members").glob("*.tmp"))


@pytest.mark.slow
def test_members_on_an_object_store(tmp_path):
    with object_store(tmp_path) as query:
        uri = f"s3://key:secret@runs/ensemble?{query}"
        kept = begun(uri)
        kept.write(0, STATE)
        again = begun(uri)
        assert same(again.read(0), STATE)
        assert again.read(1) is None
        with pytest.raises(Fenced, match="another fit has begun to keep members") as refused:
            kept.write(1, STATE)
        with pytest.raises(InvalidInput, match="seed was 3 and is 4") as other:
            begun(uri, seed=4)
        with pytest.warns(UserWarning, match="member 2 is not kept.*has credentials or options") as warned:
            assert not again.save(2, TorchModel(factory=nets.scores, weights=pack(nets.scores())), 1.0)
        again.end()
    shown = [repr(kept), str(refused.value), str(other.value), *(str(each.message) for each in warned)]
    assert "secret" not in "".join(shown)


# ---- models of fits of the driver --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows(spark):
    rows = [(float(i % 7), float(i % 3), float(i % 7 > 3)) for i in range(60)]
    return spark.createDataFrame(rows, ["a", "b", "label"])


@pytest.fixture(scope="module")
def fitted(rows):
    assembler = VectorAssembler(inputCols=["a", "b"], outputCol="features")
    return Pipeline(stages=[assembler, LogisticRegression(maxIter=3)]).fit(rows)


@pytest.mark.slow
def test_a_saved_model_is_loaded(fitted, rows, tmp_path):
    kept = begun(tmp_path)
    assert kept.load(4) is None
    assert kept.save(4, fitted, 1.5)
    assert kept.save(5, fitted.stages[1], 2.5)
    assert sorted(path.name for path in (tmp_path / "members").glob("model-*")) == ["model-00004", "model-00005"]
    again = begun(tmp_path)
    found, inner = again.load(4), again.load(5)
    assert isinstance(found, PipelineModel)
    assert isinstance(inner, LogisticRegressionModel)
    assert (again.seconds(4), again.seconds(5)) == (1.5, 2.5)
    one, other = (each.transform(rows).select("probability").collect() for each in (found, fitted))
    assert one == other


@pytest.mark.slow
def test_a_model_replaces_another(fitted, tmp_path):
    kept = begun(tmp_path)
    kept.save(0, fitted, 1.0)
    kept.save(0, fitted.stages[1], 2.0)
    assert isinstance(kept.load(0), LogisticRegressionModel)
    assert kept.seconds(0) == 2.0
    assert len(list((tmp_path / "members").glob("model-*"))) == 1


def test_a_path_that_a_uri_would_have_to_escape(fitted, tmp_path):
    kept = begun(tmp_path / "a b?c%20#d")
    assert kept.save(0, fitted.stages[1], 1.0)
    assert isinstance(kept.load(0), LogisticRegressionModel)


@pytest.mark.parametrize("which", ["model/metadata/part-*", "model/data/part-*", "member.json"])
@pytest.mark.parametrize("damage", [tear, flip, os.unlink], ids=["tear", "flip", "gone"])
def test_a_damaged_model_is_no_model(which, damage, fitted, tmp_path):
    kept = begun(tmp_path)
    kept.save(0, fitted.stages[1], 1.0)
    [path] = (tmp_path / "members/model-00000").glob(which)
    damage(path)
    if which == "member.json" and damage is os.unlink:
        assert kept.load(0) is None
        return
    if which == "member.json" and damage is flip:
        damage(path, 40)
    with pytest.warns(UserWarning, match=r"member 0, .*model-00000, cannot be used, and it is trained again"):
        assert kept.load(0) is None


@pytest.mark.slow
def test_a_save_that_fails_before_its_place_leaves_what_was_there(fitted, tmp_path, monkeypatch):
    kept = begun(tmp_path)
    kept.save(0, fitted, 1.0)

    def fails(staged, uri):
        assert (tmp_path / "members").joinpath(staged, "member.json").is_file()
        raise OSError("the disk has gone")

    with monkeypatch.context() as patch:
        patch.setattr(files, "replace", fails)
        for index in (0, 1):
            with pytest.warns(UserWarning, match=f"member {index} is not kept.*OSError: the disk has gone"):
                assert not kept.save(index, fitted.stages[1], 2.0)
    assert isinstance(kept.load(0), PipelineModel)
    assert kept.load(1) is None
    assert not list((tmp_path / "members").glob("*.tmp"))


class Killed(BaseException):
    """What is no Exception, as that of a signal."""


def test_a_save_that_is_cut_short_leaves_no_model(fitted, tmp_path, monkeypatch):
    kept = begun(tmp_path)

    def killed(staged, uri):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(files, "replace", killed)
        patch.setattr(files, "delete", lambda uri: None)  # a process that is killed deletes nothing
        with pytest.raises(Killed):
            kept.save(0, fitted.stages[1], 1.0)
    assert len(list((tmp_path / "members").glob("model-00000.*.tmp"))) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kept.load(0) is None
        kept = begun(tmp_path)
    assert kept.save(0, fitted.stages[1], 1.0)
    assert [path.name for path in (tmp_path / "members").glob("model-*")] == ["model-00000"]


class Unwritable(Model):
    """A model that has no writer."""

    def _transform(self, dataset):
        return dataset


def test_a_model_without_a_writer_is_not_kept(spark, tmp_path):
    kept = begun(tmp_path)
    for model in (Unwritable(), PipelineModel([Unwritable()])):
        with pytest.warns(UserWarning, match="member 9 is not kept, and the same fit again would train it again"):
            assert not kept.save(9, model, 1.0)
    assert kept.load(9) is None


def test_what_is_no_model_is_not_loaded(spark, fitted, tmp_path):
    """Whoever may write to the directory names a class, and that is imported: nothing of it runs."""
    kept = begun(tmp_path)
    kept.save(0, fitted.stages[1], 1.0)
    [part] = (tmp_path / "members/model-00000/model/metadata").glob("part-*")
    part.write_text(part.read_text().replace("org.apache.spark.ml.classification.LogisticRegressionModel", "os.system"))
    for checksum in part.parent.glob(".*.crc"):
        checksum.unlink()
    folder = str(tmp_path / "members/model-00000")
    record = {"seconds": 1.0, "digest": saved_models._digest(f"{folder}/model")}
    (tmp_path / "members/model-00000/member.json").write_text(json.dumps(record))
    with pytest.warns(UserWarning, match=r"it holds a os\.system; expected a pyspark\.ml Model"):
        assert kept.load(0) is None


def test_data_that_executors_wrote_elsewhere_is_not_kept(fitted, tmp_path, monkeypatch):
    """A directory that only the driver has: what is left there of a table is that it was a success."""
    kept, digest = begun(tmp_path), saved_models._digest

    def elsewhere(uri):
        for part in (tmp_path / "members").glob("*.tmp/model/data/*part-*"):
            part.unlink()
        return digest(uri)

    monkeypatch.setattr(saved_models, "_digest", elsewhere)
    with pytest.warns(UserWarning, match=r"member 0 is not kept.*model/data has no data.*all hosts share"):
        assert not kept.save(0, fitted.stages[1], 1.0)


class Secret(nn.Module):
    """A module that cannot be exported, and so is pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 1)

    def forward(self, x):
        return self.inner(x) * float(x.detach().sum().item() > 0)


def test_nothing_is_unpickled_without_trust(spark, tmp_path):
    module = Secret()
    model = TorchModel(factory=lambda: module, weights=pack(module))
    kept = begun(tmp_path)
    with pytest.warns(UserWarning, match="saved as a pickle"):
        assert kept.save(0, model, 1.0)
    with pytest.warns(UserWarning, match=r"member 0.*pickled parts.*spark\.sparkdl\.trust"):
        assert kept.load(0) is None
    spark.conf.set("spark.sparkdl.trust", "true")
    try:
        assert isinstance(kept.load(0), TorchModel)
    finally:
        spark.conf.unset("spark.sparkdl.trust")
