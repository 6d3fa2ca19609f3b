"""The store of finished members: atomic, for one ensemble, on a directory that all hosts see."""

from __future__ import annotations

import json
import os
import shutil

import cloudpickle
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import LogisticRegression, LogisticRegressionModel
from pyspark.ml.feature import VectorAssembler

from sparkdl import TorchModel
from sparkdl.ensembles.members.store import MemberStore
from sparkdl.errors import Fenced, InvalidInput
from sparkdl.io import files
from sparkdl.io.weights import pack
from sparkdl.ml.trials import saved_models
from tests.ensembles.test_persistence import forge
from tests.faults import flip, tear
from tests.ml import nets
from tests.object_store import object_store
from tests.sessions import conf

GIVEN = {"class": "Bagging", "seed": 3, "rows": "100 rows, 12345", "base": {"maxDepth": 5, "labelCol": "y"}}
STATE = {"weights": b"abc", "history": [{"epoch": 1, "loss": 0.25}]}


def begun(directory, **changed) -> MemberStore:
    store = MemberStore(str(directory))
    store.begin({**GIVEN, **changed})
    return store


# ---- configuration ---------------------------------------------------------------------------------------------------


def test_equal_configuration_continues_and_another_raises(tmp_path):
    begun(tmp_path, sizes=(1, 2)).write(5, STATE)
    assert begun(tmp_path, sizes=[1, 2]).read(5) == STATE
    with pytest.raises(InvalidInput) as raised:
        begun(tmp_path, seed=4, base={"maxDepth": 7, "labelCol": "y"}, folds=2)
    for clause in ("seed was 3 and is 4", "base.maxDepth was 5 and is 7", "folds was not there and is 2", "runDir"):
        assert clause in raised.value.message
    assert "labelCol" not in raised.value.message
    assert "rows was" not in raised.value.message
    assert json.loads((tmp_path / "ensemble.json").read_text())["configuration"] == {**GIVEN, "sizes": [1, 2]}
    averaged = {"sizes": [1, 2], "base": GIVEN["base"] | {"callbacks": "[EMA()]"}}
    with pytest.warns(UserWarning, match=r"did not record \[EMA\(\)\]; expected it"):
        begun(tmp_path, **averaged)
    begun(tmp_path, **averaged)
    with pytest.raises(InvalidInput, match=r"base.callbacks was '\[EMA\(\)\]' and is '\[\]'"):
        begun(tmp_path, sizes=[1, 2], base=GIVEN["base"] | {"callbacks": "[]"})


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1, "configuration": {}}', '{"format": 2}', None])
def test_damaged_or_missing_configuration_raises(text, tmp_path):
    begun(tmp_path).write(0, STATE)
    (tmp_path / "ensemble.json").unlink() if text is None else (tmp_path / "ensemble.json").write_text(text)
    with pytest.raises(InvalidInput, match=r"ensemble\.json(, which describes them,)? (is|has).*another runDir"):
        begun(tmp_path)


# ---- members of tasks ------------------------------------------------------------------------------------------------


def test_pickled_copy_writes_what_the_store_reads(tmp_path):
    store = begun(tmp_path / "run")
    copy = cloudpickle.loads(cloudpickle.dumps(store))
    assert copy == store
    copy.write(12, STATE)
    first = (tmp_path / "run/members/member-00012").read_bytes()
    store.write(12, STATE)
    assert (tmp_path / "run/members/member-00012").read_bytes() == first
    assert store.read(12) == STATE
    assert store.read(11) is None


def test_directory_that_the_driver_does_not_share_raises(tmp_path):
    with pytest.raises(InvalidInput, match=r"not share the driver's directory.*set runDir to a directory that all"):
        MemberStore(str(tmp_path)).write(0, STATE)
    assert not list(tmp_path.iterdir())


def test_file_of_another_member_is_missing_with_a_warning(tmp_path):
    store = begun(tmp_path)
    store.write(7, STATE)
    (tmp_path / "members/member-00007").rename(tmp_path / "members/member-00008")
    with pytest.warns(UserWarning, match="member 8, .*cannot be used.*not the state of this member"):
        assert store.read(8) is None


def test_next_driver_deletes_unfinished_saves(tmp_path):
    begun(tmp_path)
    members = tmp_path / "members"
    (members / "model-00001.abc.tmp/model").mkdir(parents=True)
    (members / "member-00001.abc.tmp").write_bytes(b"")
    store = begun(tmp_path)
    assert not list(members.iterdir())
    assert (tmp_path / f"visible-{store.token}").exists()
    store.withdraw()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ensemble.json", "members"]


@pytest.mark.slow
def test_members_on_an_object_store(tmp_path):
    with object_store(tmp_path) as query:
        uri = f"s3://key:secret@runs/ensemble?{query}"
        store = begun(uri)
        store.write(0, STATE)
        again = cloudpickle.loads(cloudpickle.dumps(begun(uri)))
        assert again.read(0) == STATE
        assert again.read(1) is None
        with pytest.raises(Fenced, match="another fit has begun to store members in") as fenced:
            store.write(1, STATE)
        with pytest.raises(InvalidInput, match="seed was 3 and is 4") as other:
            begun(uri, seed=4)
        with pytest.warns(UserWarning, match="member 2 is not stored.*has credentials or options") as warned:
            assert not again.save(2, TorchModel(factory=nets.scores, weights=pack(nets.scores())), 1.0)
        again.withdraw()
    shown = [repr(store), str(fenced.value), str(other.value), *(str(warning.message) for warning in warned)]
    assert "secret" not in "".join(shown)


# ---- models of fits of the driver ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted(spark):
    table = [(float(i % 7), float(i % 3), float(i % 7 > 3)) for i in range(60)]
    rows = spark.createDataFrame(table, "a: double, b: double, label: double")
    assembler = VectorAssembler(inputCols=["a", "b"], outputCol="features")
    return Pipeline(stages=[assembler, LogisticRegression(maxIter=3)]).fit(rows)


@pytest.fixture(scope="module")
def inner(fitted):
    return fitted.stages[1]


@pytest.mark.slow
def test_saved_model_is_loaded_and_replaced(fitted, inner, tmp_path):
    store = begun(tmp_path / "a b?c%20#d")
    assert store.load(4) is None
    assert store.save(4, fitted, 1.5)
    again = begun(tmp_path / "a b?c%20#d")
    model, seconds = again.load(4)
    assert isinstance(model, PipelineModel)
    assert (model.stages[1].coefficients, seconds) == (inner.coefficients, 1.5)
    assert store.save(4, inner, 2.5)
    model, seconds = again.load(4)
    assert (type(model), seconds) == (LogisticRegressionModel, 2.5)
    assert [path.name for path in (tmp_path / "a b?c%20#d/members").glob("model-*")] == ["model-00004"]


@pytest.fixture(scope="module")
def saved(inner, tmp_path_factory):
    store = begun(tmp_path_factory.mktemp("saved"))
    store.save(0, inner, 1.0)
    return store


@pytest.mark.parametrize("which", ["model/metadata/part-*", "model/data/part-*", "member.json"])
@pytest.mark.parametrize("damage", [tear, lambda path: flip(path, 40), os.unlink], ids=["tear", "flip", "gone"])
def test_damaged_model_is_missing_with_a_warning(which, damage, saved, tmp_path):
    store = MemberStore(str(shutil.copytree(saved.directory, tmp_path / "run")))
    [path] = (tmp_path / "run/members/model-00000").glob(which)
    damage(path)
    if which == "member.json" and damage is os.unlink:
        assert store.load(0) is None
        return
    with pytest.warns(UserWarning, match=r"member 0, .*model-00000, cannot be used; fit trains it again"):
        assert store.load(0) is None


def test_interrupted_save_leaves_the_model_before_it(fitted, inner, tmp_path, monkeypatch):
    store = begun(tmp_path)
    store.save(0, fitted, 1.0)

    def fails(staged, uri):
        assert staged.endswith(".tmp")  # which the next driver deletes
        assert (tmp_path / "members").joinpath(staged, "member.json").is_file()
        raise OSError("the disk has gone")

    with monkeypatch.context() as patch:
        patch.setattr(files, "replace", fails)
        for index in (0, 1):
            with pytest.warns(UserWarning, match=f"member {index} is not stored.*OSError: the disk has gone"):
                assert not store.save(index, inner, 2.0)
    assert isinstance(store.load(0)[0], PipelineModel)
    assert [path.name for path in (tmp_path / "members").iterdir()] == ["model-00000"]


def test_class_that_is_no_model_is_not_loaded(spark, saved, tmp_path):
    """An attacker with write access to the directory names a class: load imports nothing."""
    store = MemberStore(str(shutil.copytree(saved.directory, tmp_path / "run")))
    folder = tmp_path / "run/members/model-00000"
    forge(folder / "model", "org.apache.spark.ml.classification.LogisticRegressionModel", "os.system")
    record = {"seconds": 1.0, "digest": saved_models._digest(f"{folder}/model")}
    (folder / "member.json").write_text(json.dumps(record))
    with pytest.warns(UserWarning, match=r"os\.system; expected nothing of Python's own"):
        assert store.load(0) is None


def test_data_on_the_disks_of_executors_is_not_stored(inner, tmp_path, monkeypatch):
    """If only the driver has the directory, a table there has its _SUCCESS and no data."""
    store, digest = begun(tmp_path), saved_models._digest

    def elsewhere(uri):
        for part in (tmp_path / "members").glob("*.tmp/model/data/*part-*"):
            part.unlink()
        return digest(uri)

    monkeypatch.setattr(saved_models, "_digest", elsewhere)
    with pytest.warns(UserWarning, match=r"member 0 is not stored.*model/data has no data.*all hosts share"):
        assert not store.save(0, inner, 1.0)


def test_load_unpickles_nothing_without_trust(spark, tmp_path):
    store, module = begun(tmp_path), nets.Line()
    with pytest.warns(UserWarning, match="saved as a pickle"):
        assert store.save(0, TorchModel(factory=module, weights=pack(module)), 1.0)
    with pytest.warns(UserWarning, match=r"member 0.*pickled parts.*spark\.sparkdl\.trust"):
        assert store.load(0) is None
    with conf(spark, "spark.sparkdl.trust", "true"):
        assert isinstance(store.load(0)[0], TorchModel)
