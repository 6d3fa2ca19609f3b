"""What configurations say of rows, and the Params that hold functions, objects and lists, by YAML and command line."""

from __future__ import annotations

import json

import pytest
import yaml

from sparkdl import InputColumn
from sparkdl.cli.commands import run
from sparkdl.cli.data import Data
from sparkdl.errors import InvalidInput

MODEL = {"class_path": "some_nets.build", "init_args": {"hidden": 3}}


@pytest.fixture
def write(tmp_path):
    """A configuration file of an estimator with these arguments."""

    def write(given, kind="TorchClassifier"):
        estimator = {"class_path": f"sparkdl.{kind}", "init_args": {"model": MODEL} | given}
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump({"data": {"path": "train.parquet"}, "estimator": estimator}))
        return str(file)

    return write


@pytest.fixture
def estimator(read, write):
    """The estimator of a configuration file and of the command line."""
    return lambda given, *words, kind="TorchClassifier": read(write(given, kind), *words).estimator


# ---- Params -----------------------------------------------------------------------------------------------------


def test_columns_and_hooks_are_objects(estimator):
    import some_nets

    specs = [{"name": "image", "dtype": "float32", "shape": [1, 28, 28]}, {"name": "age"}]
    callbacks = [{"class_path": "some_nets.Saves", "init_args": {"every": 3}}, "some_nets.Saves"]
    words = ["--estimator.columnSpecs", json.dumps(specs), "--estimator.callbacks", json.dumps(callbacks)]
    for found in (estimator({"columnSpecs": specs, "callbacks": callbacks}), estimator({}, *words)):
        assert found.getColumnSpecs() == [InputColumn("image", "float32", (1, 28, 28)), InputColumn("age")]
        assert [(type(callback), callback.every) for callback in found.getCallbacks()] == [
            (some_nets.Saves, 3),
            (some_nets.Saves, 1),
        ]


@pytest.mark.parametrize("name", ["collate", "augment"])
def test_functions_are_import_paths_or_objects(estimator, name):
    import some_nets

    assert estimator({}).getOrDefault(name) is None
    assert estimator({name: "some_nets.as_they_are"}).getOrDefault(name) is some_nets.as_they_are
    assert estimator({}, f"--estimator.{name}", "some_nets.as_they_are").getOrDefault(name) is some_nets.as_they_are
    noise = {name: {"class_path": "some_nets.Noise", "init_args": {"scale": 0.5}}}
    for words, scale in (([], 0.5), ([f"--estimator.{name}.scale", "2.0"], 2.0)):
        found = estimator(noise, *words).getOrDefault(name)
        assert (type(found), found.scale) == (some_nets.Noise, scale)


def test_plain_params(estimator):
    given = {"featuresCol": "pixels", "thresholds": [0.2, 0.8], "numClasses": 2, "patience": 3}
    words = [word for name, value in given.items() for word in (f"--estimator.{name}", json.dumps(value).strip('"'))]
    for found in (estimator(given), estimator({}, *words)):
        assert (found.getInputCols(), found.getThresholds()) == (["pixels"], [0.2, 0.8])
        assert (found.getNumClasses(), found.getPatience()) == (2, 3)
        assert found.getModel().keywords == {"hidden": 3}


@pytest.mark.parametrize("kind", ["TorchClassifier", "TorchRegressor", "TorchEstimator"])
def test_every_argument_is_a_key(estimator, kind, capsys):
    with pytest.raises(SystemExit) as ended:
        run("train", ["--estimator.help", f"sparkdl.{kind}"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    params = estimator({"loss": "torch.nn.MSELoss"}, kind=kind).params
    assert [param.name for param in params if f".{param.name} " not in printed] == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"columnSpecs": [{"nme": "image"}]}, "nme"),
        ({"columnSpecs": [{"name": "image", "dtype": "complex"}]}, "complex"),
        ({"collate": "some_nets.nothing"}, "nothing"),
        ({"callbacks": [{"class_path": "some_nets.Saves", "init_args": {"evry": 3}}]}, "did you mean 'every'"),
        ({"callbacks": ["some_nets.Nothing"]}, "Nothing"),
        ({"patience": 0}, "patience is 0"),
        ({"numClasses": 1}, "numClasses is 1"),
        ({"thresholds": [1.0]}, "thresholds is [1.0]"),
        ({"featuresCol": "a", "inputCols": ["b"]}, "only one of them"),
    ],
)
def test_mistake_is_named(refused, write, given, words):
    assert words in refused("--config", write(given))


# ---- rows -------------------------------------------------------------------------------------------------------


def test_rows_of_every_kind(read, tmp_path):
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"estimator": {"class_path": "sparkdl.TorchRegressor"}}))
    file = str(tmp_path / "job.yaml")
    assert read(file, "--data.query", "select 1 as x").data == Data(query="select 1 as x")
    found = read(file, "--data.path", "here", "--data.format", "csv", "--data.schema", "x double, label int")
    assert found.data == Data(path="here", format="csv", schema="x double, label int")
    found = read(file, "--data.path", "here", "--test.table", "db.rows")
    assert (found.data, found.test) == (Data(path="here"), Data(table="db.rows"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "rows come from nowhere; expected exactly one of path, table and query"),
        ({"path": "here", "table": "db.rows"}, "path and table; expected exactly one"),
        ({"path": "here", "table": "db.rows", "query": "select 1"}, "path and table and query"),
        ({"table": "db.rows", "schema": "x int"}, "schema is ignored if rows come from a table"),
        ({"table": "db.rows", "format": "csv"}, "format is ignored if rows come from a table"),
        ({"query": "select 1", "options": {"header": True}}, "options is ignored if rows come from a query"),
    ],
)
def test_data_rejects(given, message):
    with pytest.raises(InvalidInput, match=message):
        Data(**given)


def test_two_places_of_rows_end_every_command(refused):
    """jsonargparse wraps the error of an optional argument, such as the test rows of a training."""
    rows, message = ["--data.path", "here", "--data.table", "t"], "path and table; expected exactly one"
    test = ["--test.path", "here", "--test.table", "t"]
    assert message in refused("--estimator", "sparkdl.TorchRegressor", "--data.path", "here", *test)
    assert message in refused("--model", "model", *rows, "--output", "out", job="predict")
    assert message in refused("--model", "model", *rows, job="evaluate")
