"""The job of ensembles: its configurations, what a mistake in one says, a run by ``spark-submit``; and the example."""

from __future__ import annotations

import functools
import re
import subprocess
import sys

import pytest
import yaml
from pyspark.ml import Pipeline
from pyspark.ml.classification import DecisionTreeClassifier, LogisticRegression, RandomForestClassifier
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import StandardScaler

from sparkdl import Bagging, BestOf, Boosting, Stacking, TorchClassifier, TorchEstimator
from sparkdl.cli import app, commands, ensemble
from sparkdl.cli.data import Data
from sparkdl.cli.saved_models import load, output_columns
from sparkdl.errors import InvalidInput
from sparkdl.ml.evaluation import held_out, measure
from sparkdl.ml.persistence import factory
from tests.sessions import ROOT, driver_environment, frame
from tests.training.test_digits import digits as digits
from tests.training.test_digits import finish, submit

NAMES = {"bagging": Bagging, "boosting": Boosting, "stacking": Stacking, "best_of": BestOf}
NET = {"class_path": "some_nets.Net", "init_args": {"hidden": 3}}
TORCH = {"class_path": "sparkdl.TorchClassifier", "init_args": {"model": NET, "epochs": 2}}
TREE = {"class_path": "pyspark.ml.classification.DecisionTreeClassifier", "init_args": {"maxDepth": 2}}


@pytest.fixture
def run(nets):
    """What the job is called with, and the exit code."""

    def run(*arguments):
        called = {}

        @functools.wraps(ensemble.ensemble)
        def noted(**given):
            called.update(given)

        return called, app.main(noted, [*map(str, arguments)])

    return run


@pytest.fixture
def write(tmp_path):
    """A configuration file of an ensemble."""

    def write(kind, **arguments):
        file = tmp_path / "job.yaml"
        ensemble = {"class_path": f"sparkdl.{kind}", "init_args": arguments}
        file.write_text(yaml.safe_dump({"data": {"path": "train.parquet"}, "ensemble": ensemble}))
        return file

    return write


# ---- configurations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_configuration_that_comes_along_is_understood_without_spark(nets, name, capsys):
    with pytest.raises(SystemExit) as ended:
        commands.run("ensemble", ["--config", str(ROOT / f"conf/ensemble/{name}.yaml"), "--print_config"])
    assert ended.value.code == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["ensemble"]["class_path"] == f"sparkdl.{NAMES[name].__name__}"
    found = printed["ensemble"]["init_args"]
    expected = yaml.safe_load((ROOT / f"conf/ensemble/{name}.yaml").read_text())
    plain = {
        key: value for key, value in expected["ensemble"]["init_args"].items() if not isinstance(value, dict | list)
    }
    assert plain.items() <= found.items()
    assert expected["data"].items() <= printed["data"].items()
    (held,) = {key for key in found if key in ("base", "bases", "candidates")}
    given, made = expected["ensemble"]["init_args"][held], found[held]
    several = isinstance(given, list)
    for one, other in zip(given if several else [given], made if several else [made], strict=True):
        assert one["class_path"] == other["class_path"]
        wanted = {key: value for key, value in one["init_args"].items() if not isinstance(value, dict)}
        assert wanted.items() <= other["init_args"].items()


def test_a_bagging_of_networks_is_made_without_spark(run, write):
    given, code = run(
        "--config", write("Bagging", base=TORCH, numModels=3, maxFeatures=8), "--ensemble.subsamplingRate", 0.5
    )
    found = given["ensemble"]
    assert code == 0
    assert (type(found), found.getNumModels(), found.getSubsamplingRate()) == (Bagging, 3, 0.5)
    assert type(found.getBase()) is TorchClassifier
    assert found.getBase().getEpochs() == 2
    assert factory.describe(found.getBase().getModel())["kwargs"] == {"hidden": 3}


@pytest.mark.parametrize(("value", "found"), [("8", 8), ("0.5", 0.5), ("1.0", 1.0), ("sqrt", "sqrt"), ("all", None)])
def test_features_are_a_number_a_share_or_a_name(run, write, value, found):
    given, _ = run("--config", write("Bagging", base=TORCH), "--ensemble.maxFeatures", value)
    subset = given["ensemble"].getMaxFeatures()
    assert (type(subset), subset) == (type(found), found)


def test_arguments_of_the_base_are_keys(run, write):
    words = ["--ensemble.base.epochs", 7, "--ensemble.base.model.hidden", 5, "--ensemble.numModels", 4]
    given, _ = run("--config", write("Bagging", base=TORCH), *words)
    assert given["ensemble"].getBase().getEpochs() == 7
    assert given["ensemble"].getBase().getModel().keywords == {"hidden": 5}


def test_models_of_members_may_be_functions(run, write):
    build = {"class_path": "some_nets.build", "init_args": {"hidden": 3}}
    torch = {"class_path": "sparkdl.TorchClassifier", "init_args": {"model": build}}
    found = run("--config", write("Stacking", bases=[torch, TORCH], numFolds=2))[0]["ensemble"].getBases()
    assert factory.describe(found[0].getModel()) == {"path": "some_nets:build", "args": [], "kwargs": {"hidden": 3}}
    assert factory.describe(found[1].getModel())["path"] == "some_nets:Net"


def test_what_is_printed_gives_the_same_ensemble(run, write, capsys, tmp_path):
    with pytest.raises(SystemExit):
        commands.run("ensemble", ["--config", str(write("Bagging", base=TORCH, numModels=3)), "--print_config"])
    (tmp_path / "again.yaml").write_text(capsys.readouterr().out)
    found = run("--config", tmp_path / "again.yaml")[0]["ensemble"]
    assert (found.getNumModels(), found.getBase().getEpochs()) == (3, 2)


def test_estimators_of_the_jvm_are_made_in_the_session(spark, run, write):
    scaler = {"class_path": "pyspark.ml.feature.StandardScaler", "init_args": {"inputCol": "x", "outputCol": "scaled"}}
    logistic = {"class_path": "pyspark.ml.classification.LogisticRegression", "init_args": {"featuresCol": "scaled"}}
    pipeline = {"class_path": "pyspark.ml.Pipeline", "init_args": {"stages": [scaler, logistic]}}
    given, code = run("--config", write("Stacking", bases=[TORCH, TREE, pipeline], meta=logistic, numFolds=3))
    network, tree, found = given["ensemble"].getBases()
    assert code == 0
    assert type(network) is TorchClassifier
    assert (type(tree), tree.getMaxDepth()) == (DecisionTreeClassifier, 2)
    assert [type(stage) for stage in found.getStages()] == [StandardScaler, LogisticRegression]
    assert (type(found), found.getStages()[0].getOutputCol()) == (Pipeline, "scaled")
    assert given["ensemble"].getMeta().getFeaturesCol() == "scaled"


def test_the_best_of_candidates_has_an_evaluator(spark, run):
    given, code = run("--config", ROOT / "conf/ensemble/best_of.yaml")
    found = given["ensemble"]
    assert code == 0
    assert [type(each) for each in found.getCandidates()] == [TorchClassifier, TorchClassifier, RandomForestClassifier]
    assert type(found.getEvaluator()) is MulticlassClassificationEvaluator
    assert found.getEvaluator().getMetricName() == "accuracy"
    assert given["data"].vectors == given["test"].vectors == ["features"]


# ---- mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        ("Bagging", {"base": TORCH, "numModel": 3}, "did you mean 'numModels'?"),
        (
            "Bagging",
            {"base": {**TORCH, "init_args": {"epoch": 3}}},
            "did you mean 'epochs'?",
        ),
        (
            "Boosting",
            {"base": {**TREE, "init_args": {"maxdepth": 3}}},
            "did you mean 'maxDepth'?",
        ),
        ("Stacking", {"bases": [{**TREE, "init_args": {"maxdepth": 3}}]}, "did you mean 'maxDepth'?"),
        ("Bagging", {"base": {"class_path": "sparkdl.TorchModel"}}, "TorchModel"),
        ("Baging", {}, "Baging"),
    ],
)
def test_a_mistake_in_the_file_is_named(run, write, capsys, kind, arguments, said):
    with pytest.raises(SystemExit) as ended:
        run("--config", write(kind, **arguments))
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        ("Bagging", {"base": {**TORCH, "init_args": {"epochs": 0}}}, "error: epochs is 0; expected at least 1.\n"),
        ("Bagging", {"base": TORCH, "numModels": 0}, "error: numModels is 0; expected at least 1.\n"),
        ("Stacking", {"bases": [TORCH], "numFolds": 1}, "error: numFolds is 1; expected at least 2.\n"),
        ("Bagging", {"base": TORCH, "maxFeatures": "some"}, "error: maxFeatures is 'some'; expected"),
    ],
)
def test_a_bad_value_ends_the_job_before_spark_is_started(run, write, capsys, kind, arguments, said):
    assert run("--config", write(kind, **arguments)) == ({}, 2)
    assert capsys.readouterr().err.startswith(said)


def test_an_ensemble_without_a_class_is_refused(run, capsys):
    assert run("--data.path", "here", "--ensemble", "sparkdl.ensembles.params.EnsembleParams")[1] == 2
    assert "ensemble has no class_path; expected sparkdl.Bagging" in capsys.readouterr().err


def test_outputs_of_any_kind_have_no_held_out_figure():
    data = Data(path="here")
    with pytest.raises(InvalidInput, match="test is for classes or numbers"):
        ensemble.ensemble(data, Bagging(base=TorchEstimator(model=int, loss="mse")), test=data)


# ---- rows and what is said ----------------------------------------------------------------------------------------


def test_arrays_are_read_as_vectors(spark, tmp_path):
    rows = spark.createDataFrame([([1.0, 2.0], 3), ([4.0, 5.0], 6)], "x array<float>, y int")
    rows.write.parquet(str(tmp_path / "rows"))
    read = Data(path=str(tmp_path / "rows"), vectors=["x"]).read(spark)
    assert read.schema["x"].dataType.simpleString() == "vector"
    assert sorted(row.x.toArray().tolist() for row in read.collect()) == [[1.0, 2.0], [4.0, 5.0]]
    for name, said in (("y", "'y', which is of type int"), ("z", "'z', which is not there")):
        with pytest.raises(InvalidInput, match=said):
            Data(path=str(tmp_path / "rows"), vectors=[name]).read(spark)


def test_summary():
    assert ensemble.summary({"seconds": 1.26, "trained": [0, 1, 2, 3, 5, 8, 9], "restored": []}) == (
        "7 members in 1.3 s, trained: 0-3, 5, 8, 9"
    )
    assert ensemble.summary({"seconds": 0.04, "trained": [], "restored": [1, 0]}) == (
        "2 members in 0.0 s, trained: none; finished before: 0, 1"
    )


@pytest.mark.slow
def test_saved_models_of_every_kind_are_loaded_and_known_by_their_columns(spark, tmp_path):
    import numpy as np

    x = np.random.default_rng(0).normal(size=(60, 2))
    frame({"features": x, "label": (x[:, 0] > 0).astype(float)}).write.parquet(str(tmp_path / "rows"))
    data = Data(path=str(tmp_path / "rows"), vectors=["features"])
    rows = data.read(spark)
    tree = DecisionTreeClassifier(maxDepth=1, probabilityCol="chance", predictionCol="told")
    judge = MulticlassClassificationEvaluator(metricName="accuracy", predictionCol="told")
    meta = LogisticRegression(predictionCol="told")
    for each in (
        Bagging(base=tree, numModels=2),
        Stacking(bases=[tree], meta=meta, numFolds=2),
        BestOf(candidates=[tree], evaluator=judge, numFolds=2),
    ):
        model = each.fit(rows)
        place = str(tmp_path / type(each).__name__)
        model.write().save(place)
        loaded = load(spark, place)
        assert type(loaded) is type(model)
        columns = output_columns(loaded)
        assert columns.prediction == "told"
        predictions = loaded.transform(rows)
        assert columns.of_classifier(predictions)
        assert measure(predictions, "label", columns).accuracy > 0.8
        said = held_out(predictions, "label", "told", classes=True)
        assert float(said.removeprefix("held-out accuracy ")) > 0.8
    rows.write.parquet(str(tmp_path / "other"))
    with pytest.raises(InvalidInput, match="cannot be loaded"):
        load(spark, str(tmp_path / "other"))


# ---- runs -------------------------------------------------------------------------------------------------------


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(420)
def test_a_bagging_of_digits_goes_on_with_what_is_missing(digits, tmp_path):
    places = {
        "data.path": digits / "train",
        "test.path": digits / "test",
        "ensemble.runDir": tmp_path / "run",
        "output": tmp_path / "model",
    }
    changes = [word for key, value in places.items() for word in (f"--{key}", value)]
    words = ["--config", "conf/ensemble/bagging.yaml", *changes]
    said, code = finish(submit("ensemble", *words, "--ensemble.numModels", 3, local=tmp_path / "local"))
    assert code == 0, said
    assert "trained: 0-2\n" in said
    said, code = finish(submit("ensemble", *words, "--ensemble.numModels", 4, local=tmp_path / "local"))
    assert code == 0, said
    assert "trained: 3; finished before: 0-2\n" in said
    assert f"saved {tmp_path / 'model'}" in said
    assert float(re.search(r"held-out accuracy (\S+)", said)[1]) >= 0.93
    assert (tmp_path / "model/metadata").exists()


@pytest.mark.chaos
@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_executor_that_is_killed_costs_one_member(tmp_path):
    ended = subprocess.run(
        [sys.executable, "examples/ensemble_recovery.py"],
        cwd=ROOT,
        env=driver_environment(tmp_path / "local", TMPDIR=str(tmp_path)) | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    table = re.findall(r"^ +(\d)  +(\d)  (.*)$", ended.stdout, re.MULTILINE)
    assert [int(member) for member, _, _ in table] == list(range(6))
    assert sum(int(times) for _, times, _ in table) == 7
    assert sum("killed" in executors for _, times, executors in table if times == "2") == 1
    assert "one executor killed: 6 models, 1 begun twice" in ended.stdout
    assert "eight members: trained [6, 7], finished before [0, 1, 2, 3, 4, 5]" in ended.stdout
    assert "begun since: 2" in ended.stdout
