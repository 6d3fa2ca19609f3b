"""What configurations say of rows, and the Params that hold functions, objects and lists, by YAML and command line."""

from __future__ import annotations

import json

import pytest
import yaml

from sparkdl import InputColumn
from sparkdl.cli.commands import run
from sparkdl.cli.data import Data
from sparkdl.errors import InvalidInput
from sparkdl.ml.persistence import factory

MODEL = {"class_path": "some_nets.build", "init_args": {"hidden": 3}}


@pytest.fixture
def estimator(read, tmp_path):
    """The estimator of a configuration with these arguments, of YAML and of the command line."""

    def estimator(given, *arguments, kind="TorchClassifier"):
        config = {
            "data": {"path": "train.parquet"},
            "estimator": {"class_path": f"sparkdl.{kind}", "init_args": {"model": MODEL} | given},
        }
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump(config))
        return read(str(file), *arguments).estimator

    return estimator


# ---- Params -----------------------------------------------------------------------------------------------------


def test_columns_are_objects(estimator):
    found = estimator({"columnSpecs": [{"name": "image", "dtype": "float32", "shape": [1, 28, 28]}, {"name": "age"}]})
    assert found.getColumnSpecs() == [InputColumn("image", "float32", (1, 28, 28)), InputColumn("age")]
    found = estimator({}, "--estimator.columnSpecs", json.dumps([{"name": "image", "shape": [1, 28, 28]}]))
    assert found.getColumnSpecs() == [InputColumn("image", shape=(1, 28, 28))]


@pytest.mark.parametrize("name", ["collate", "augment"])
def test_functions_are_import_paths(estimator, name):
    import some_nets

    assert estimator({name: "some_nets.as_they_are"}).getOrDefault(name) is some_nets.as_they_are
    assert estimator({}, f"--estimator.{name}", "some_nets.as_they_are").getOrDefault(name) is some_nets.as_they_are
    assert estimator({}).getOrDefault(name) is None


@pytest.mark.parametrize("name", ["collate", "augment"])
def test_functions_with_settings_are_objects(estimator, name):
    import some_nets

    given = {"class_path": "some_nets.Noise", "init_args": {"scale": 0.5}}
    found = estimator({name: given}).getOrDefault(name)
    assert type(found) is some_nets.Noise
    assert found.scale == 0.5
    assert estimator({name: given}, f"--estimator.{name}.scale", "2.0").getOrDefault(name).scale == 2.0


def test_hooks_are_objects(estimator):
    import some_nets

    hooks = [{"class_path": "some_nets.Saves", "init_args": {"every": 3}}, "some_nets.Saves"]
    found = estimator({"hooks": hooks}).getHooks()
    assert [(type(hook), hook.every) for hook in found] == [(some_nets.Saves, 3), (some_nets.Saves, 1)]
    found = estimator({}, "--estimator.hooks", json.dumps(hooks)).getHooks()
    assert [(type(hook), hook.every) for hook in found] == [(some_nets.Saves, 3), (some_nets.Saves, 1)]


def test_plain_params(estimator):
    given = {"featuresCol": "pixels", "thresholds": [0.2, 0.8], "numClasses": 2, "patience": 3}
    found = estimator(given)
    assert (found.getInputCols(), found.getThresholds()) == (["pixels"], [0.2, 0.8])
    assert (found.getNumClasses(), found.getPatience()) == (2, 3)
    words = [word for name, value in given.items() for word in (f"--estimator.{name}", json.dumps(value).strip('"'))]
    again = estimator({}, *words)
    assert all(again.getOrDefault(name) == found.getOrDefault(name) for name in given)
    assert factory.describe(found.getModel())["kwargs"] == {"hidden": 3}


@pytest.mark.parametrize("kind", ["TorchClassifier", "TorchRegressor", "TorchEstimator"])
def test_every_argument_is_a_key(estimator, kind, capsys):
    with pytest.raises(SystemExit) as ended:
        run("train", ["--estimator.help", f"sparkdl.{kind}"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    arguments = estimator({"loss": "torch.nn.MSELoss"}, kind=kind).params
    assert [param.name for param in arguments if f".{param.name} " not in said] == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"columnSpecs": [{"nme": "image"}]}, "nme"),
        ({"columnSpecs": [{"name": "image", "dtype": "complex"}]}, "complex"),
        ({"collate": "some_nets.nothing"}, "nothing"),
        ({"hooks": [{"class_path": "some_nets.Saves", "init_args": {"evry": 3}}]}, "did you mean 'every'"),
        ({"hooks": ["some_nets.Nothing"]}, "Nothing"),
        ({"patience": 0}, "patience is 0"),
        ({"numClasses": 1}, "numClasses is 1"),
        ({"thresholds": [1.0]}, "thresholds is [1.0]"),
        ({"featuresCol": "a", "inputCols": ["b"]}, "only one of them"),
    ],
)
def test_mistakes_are_named(nets, tmp_path, capsys, given, said):
    config = {
        "data": {"path": "train.parquet"},
        "estimator": {"class_path": "sparkdl.TorchClassifier", "init_args": {"model": MODEL} | given},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(config))
    try:
        code = run("train", ["--config", str(tmp_path / "job.yaml")])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert said in capsys.readouterr().err


def test_what_a_union_makes_of_a_mistake_is_one(nets, capsys):
    words = ["--estimator", "sparkdl.TorchRegressor", "--data.path", "here", "--test.path", "here", "--test.table", "t"]
    assert run("train", words) == 2
    assert "path and table; expected exactly one" in capsys.readouterr().err


# ---- rows -------------------------------------------------------------------------------------------------------


def test_rows_of_every_kind(read, tmp_path):
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"estimator": {"class_path": "sparkdl.TorchRegressor"}}))
    file = str(tmp_path / "job.yaml")
    assert read(file, "--data.table", "db.rows").data == Data(table="db.rows")
    assert read(file, "--data.query", "select 1 as x").data == Data(query="select 1 as x")
    found = read(file, "--data.path", "here", "--data.format", "csv", "--data.schema", "x double, label int")
    assert found.data == Data(path="here", format="csv", schema="x double, label int")
    found = read(file, "--data.path", "here", "--test.table", "db.rows")
    assert (found.data, found.test) == (Data(path="here"), Data(table="db.rows"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "read from nowhere; expected exactly one of path, table and query"),
        ({"path": "here", "table": "db.rows"}, "path and table; expected exactly one"),
        ({"path": "here", "table": "db.rows", "query": "select 1"}, "path and table and query"),
        ({"table": "db.rows", "schema": "x int"}, "from a table, which takes no schema"),
        ({"table": "db.rows", "format": "csv"}, "from a table, which takes no format"),
        ({"query": "select 1", "options": {"header": True}}, "from a query, which takes no options"),
    ],
)
def test_rows_from_one_place(nets, capsys, given, said):
    with pytest.raises(InvalidInput, match=said):
        Data(**given)
    arguments = [
        word for name, value in given.items() for word in (f"--data.{name}", value if name != "options" else "{a: 1}")
    ]
    for job, others in (("predict", ["--output", "out"]), ("evaluate", [])):
        words = ["--model", "model", *(arguments or ["--data", "{}"]), *others]
        assert run(job, words) == 2
        assert said in capsys.readouterr().err
