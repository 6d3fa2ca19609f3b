"""The command that trains ensembles: configurations, mistakes in them, rows and models, a run that resumes."""

import numpy as np
import pytest
import yaml
from pyspark.ml import Pipeline
from pyspark.ml.classification import DecisionTreeClassifier, LogisticRegression, NaiveBayes, RandomForestClassifier
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import StandardScaler

from sparkdl import Bagging, InvalidInput, TorchClassifier
from sparkdl.cli import commands
from sparkdl.cli.data import Data
from sparkdl.cli.scoring import load
from sparkdl.ensembles.fitted import output_columns
from sparkdl.ml.persistence.formatting import format_full_value
from tests.sessions import ROOT, frame
from tests.training.test_digits import digits as digits
from tests.training.test_digits import words

KINDS = ("bagging", "boosting", "stacking", "best_of")
NET = {"class_path": "some_nets.Net", "init_args": {"hidden": 3}}
TORCH = {"class_path": "sparkdl.TorchClassifier", "init_args": {"model": NET, "epochs": 2}}
TREE = {"class_path": "pyspark.ml.classification.DecisionTreeClassifier", "init_args": {"maxDepth": 2}}


@pytest.fixture
def ensemble_of(read):
    return lambda *arguments: read(*arguments, job="ensemble").ensemble


@pytest.fixture
def write(tmp_path):
    def write(kind, **arguments):
        file = tmp_path / "job.yaml"
        ensemble = {"class_path": f"sparkdl.{kind}", "init_args": arguments}
        file.write_text(yaml.safe_dump({"data": {"path": "train.parquet"}, "ensemble": ensemble}))
        return file

    return write


def includes(printed, written):
    """Whether a printed configuration has everything that was written."""
    if isinstance(written, dict):
        return all(includes(printed[name], written[name]) for name in written)
    if isinstance(written, list):
        return all(map(includes, printed, written))
    return printed == written


# ---- configurations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_configurations_of_the_repository_parse_without_spark(nets, name, capsys):
    file = ROOT / f"conf/ensemble/{name}.yaml"
    with pytest.raises(SystemExit) as ended:
        commands.run("ensemble", ["--config", str(file), "--print_config"])
    assert ended.value.code == 0
    assert includes(yaml.safe_load(capsys.readouterr().out), yaml.safe_load(file.read_text()))


def test_bagging_of_networks_needs_no_spark(ensemble_of, write):
    words = ["--ensemble.subsamplingRate", 0.5, "--ensemble.base.epochs", 7, "--ensemble.base.model.hidden", 5]
    bagging = ensemble_of(write("Bagging", base=TORCH, numModels=3), *words, "--ensemble.numModels", 4)
    assert (type(bagging), bagging.getNumModels(), bagging.getSubsamplingRate()) == (Bagging, 4, 0.5)
    assert (type(bagging.getBase()), bagging.getBase().getEpochs()) == (TorchClassifier, 7)
    assert bagging.getBase().getModel().keywords["hidden"] == 5


@pytest.mark.parametrize(("text", "expected"), [("8", 8), ("0.5", 0.5), ("1.0", 1.0), ("sqrt", "sqrt"), ("all", None)])
def test_max_features_is_a_number_a_fraction_or_a_name(ensemble_of, write, text, expected):
    subset = ensemble_of(write("Bagging", base=TORCH), "--ensemble.maxFeatures", text).getMaxFeatures()
    assert (type(subset), subset) == (type(expected), expected)


def test_objects_of_the_jvm_are_made_in_the_session(spark, ensemble_of, read, write):
    scaler = {"class_path": "pyspark.ml.feature.StandardScaler", "init_args": {"inputCol": "x", "outputCol": "scaled"}}
    logistic = {"class_path": "pyspark.ml.classification.LogisticRegression", "init_args": {"featuresCol": "scaled"}}
    pipeline = {"class_path": "pyspark.ml.Pipeline", "init_args": {"stages": [scaler, logistic]}}
    build = {"class_path": "some_nets.build", "init_args": {"hidden": 3}}  # a function
    torch = {"class_path": "sparkdl.TorchClassifier", "init_args": {"model": build}}
    stacking = ensemble_of(write("Stacking", bases=[torch, TREE, pipeline], meta=logistic, numFolds=3))
    network, tree, stages = stacking.getBases()
    assert (type(network), type(tree), type(stages)) == (TorchClassifier, DecisionTreeClassifier, Pipeline)
    assert (format_full_value(network.getModel()), tree.getMaxDepth()) == ("partial(build, hidden=3)", 2)
    assert [type(stage) for stage in stages.getStages()] == [StandardScaler, LogisticRegression]
    assert stages.getStages()[0].getOutputCol() == stacking.getMeta().getFeaturesCol() == "scaled"

    job = read(ROOT / "conf/ensemble/best_of.yaml", job="ensemble")
    kinds = [type(candidate) for candidate in job.ensemble.getCandidates()]
    assert kinds == [TorchClassifier, TorchClassifier, RandomForestClassifier]
    assert type(job.ensemble.getEvaluator()) is MulticlassClassificationEvaluator
    assert job.ensemble.getEvaluator().getMetricName() == "accuracy"
    assert job.data.vectors == job.test.vectors == ["features"]


# ---- mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("Bagging", {"base": TORCH, "numModel": 3}, "did you mean 'numModels'?"),
        ("Stacking", {"bases": [{**TREE, "init_args": {"maxdepth": 3}}]}, "did you mean 'maxDepth'?"),
        ("Bagging", {"base": {"class_path": "sparkdl.TorchModel"}}, "TorchModel"),
        ("Bagging", {"base": TORCH, "numModels": 0}, "error: numModels is 0; expected a whole number of at least 1.\n"),
    ],
)
def test_mistake_is_named(refused, write, kind, arguments, message):
    assert message in refused("--config", write(kind, **arguments), job="ensemble")


def test_missing_class_raises(refused):
    words = ["--data.path", "here", "--ensemble", "sparkdl.ensembles.params.EnsembleParams"]
    assert "ensemble has no class_path; expected sparkdl.Bagging" in refused(*words, job="ensemble")


# ---- rows, models and runs --------------------------------------------------------------------------------------


def test_arrays_are_read_as_vectors(spark):
    query = "select array(cast(id as float), 2.0F) as x, 3 as y from range(2)"
    rows = Data(query=query, vectors=["x"]).read(spark)
    assert rows.schema["x"].dataType.simpleString() == "vector"
    assert sorted(row.x.toArray().tolist() for row in rows.collect()) == [[0.0, 2.0], [1.0, 2.0]]
    for name, message in (("y", "'y', which is of type int"), ("z", "'z', which is missing")):
        with pytest.raises(InvalidInput, match=message):
            Data(query=query, vectors=[name]).read(spark)


@pytest.mark.slow
def test_saved_model_loads_with_its_columns(spark, tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 2))
    frame({"features": x, "label": (x[:, 0] > 0).astype(float)}).write.parquet(str(tmp_path / "rows"))
    rows = Data(path=str(tmp_path / "rows"), vectors=["features"]).read(spark).coalesce(1).cache()
    base = NaiveBayes(modelType="gaussian", probabilityCol="chance", predictionCol="class")
    Bagging(base=base, numModels=1).fit(rows).write().save(str(tmp_path / "model"))
    loaded = load(spark, str(tmp_path / "model"))
    columns = output_columns(loaded)
    assert (columns.prediction, columns.of_classifier(loaded.transform(rows))) == ("class", True)
    assert loaded.evaluate(rows).accuracy > 0.8
    with pytest.raises(InvalidInput, match="cannot be loaded"):
        load(spark, str(tmp_path / "rows"))


@pytest.mark.slow
def test_bagging_of_digits_trains_only_missing_members(digits, job, tmp_path):
    places = {"data.path": digits / "train", "test.path": digits / "test", "ensemble.runDir": tmp_path / "run"}
    places |= {"output": tmp_path / "model", "ensemble.base.epochs": 1}
    arguments = words(config="conf/ensemble/bagging.yaml", **places)
    code, printed = job("ensemble", *arguments, "--ensemble.numModels", 2)
    assert (code, "members trained   2\nmembers restored  0\n" in printed) == (0, True), printed
    code, printed = job("ensemble", *arguments, "--ensemble.numModels", 3)
    assert (code, "members trained   1\nmembers restored  2\n" in printed) == (0, True), printed
    assert f"saved {tmp_path / 'model'}" in printed
    assert "held-out accuracy " in printed
    assert (tmp_path / "model/metadata").exists()
