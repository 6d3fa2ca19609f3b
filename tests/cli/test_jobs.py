"""Commands without Spark: configurations, and mistakes in them."""

import functools
import json
import pickle
from dataclasses import fields
from pkgutil import resolve_name

import pytest
import torch
import yaml
from torch import nn

import sparkdl
from sparkdl import (
    AllReduce,
    ElasticAveraging,
    Gossip,
    InputColumn,
    LocalSGD,
    ParameterServer,
    TorchClassifier,
    TorchRegressor,
)
from sparkdl.cli import train
from sparkdl.cli.commands import run
from sparkdl.cli.data import Data
from sparkdl.errors import InvalidInput
from sparkdl.ml.persistence.formatting import format_full_value
from sparkdl.rounds.local_solvers import NewtonCG
from sparkdl.serving.format.param_values import allowed_types
from tests.sessions import ROOT

CONFIG = {
    "data": {"path": "train.parquet"},
    "test": {"path": "test.csv", "format": "csv", "options": {"header": True}},
    "estimator": {
        "class_path": "sparkdl.TorchClassifier",
        "init_args": {
            "model": {"class_path": "some_nets.Net", "init_args": {"hidden": 32}},
            "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}},
            "scheduler": {"class_path": "torch.optim.lr_scheduler.StepLR", "init_args": {"step_size": 3}},
            "loss": {"class_path": "torch.nn.CrossEntropyLoss", "init_args": {"label_smoothing": 0.1}},
            "metrics": {
                "f1": {"class_path": "torchmetrics.classification.MulticlassF1Score", "init_args": {"num_classes": 10}}
            },
            "strategy": {"class_path": "sparkdl.AllReduce", "init_args": {"bucket_bytes": 1000}},
            "epochs": 4,
        },
    },
    "output": "model",
}
ARGUMENTS = "estimator.init_args"
MODEL = f"{ARGUMENTS}.model"


@pytest.fixture
def write(tmp_path):
    """A configuration file like ``CONFIG``, with changed values and renamed keys, by their dotted paths."""

    def write(changes=(), renamed=()):
        config = json.loads(json.dumps(CONFIG))
        for paths in (changes, renamed):
            for key, value in dict(paths).items():
                *path, last = key.split(".")
                section = functools.reduce(dict.__getitem__, path, config)
                section[last if paths is changes else value] = value if paths is changes else section.pop(last)
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(config))
        return str(tmp_path / "job.yaml")

    return write


@pytest.fixture
def estimator(read, write):
    """The estimator of a configuration file with these arguments, and of the command line."""
    return lambda arguments, *words: (
        read(write({f"{ARGUMENTS}.{name}": arguments[name] for name in arguments}), *words).estimator
    )


# ---- configurations ---------------------------------------------------------------------------------------------


def test_configuration_describes_the_arguments(read, write):
    job = read(write())
    assert (job.data, job.output) == (Data(path="train.parquet"), "model")
    assert job.test == Data(path="test.csv", format="csv", options={"header": True})
    estimator = job.estimator
    assert (type(estimator), estimator.getEpochs()) == (TorchClassifier, 4)
    assert estimator.getLoss().label_smoothing == 0.1
    assert estimator.getMetrics()["f1"].num_classes == 10
    assert estimator.getStrategy() == AllReduce(bucket_bytes=1000)
    for partial, kind, arguments in (
        (estimator.getModel(), resolve_name("some_nets.Net"), {"hidden": 32}),
        (estimator.getOptimizer(), torch.optim.SGD, {"lr": 0.1}),
        (estimator.getScheduler(), torch.optim.lr_scheduler.StepLR, {"step_size": 3}),
    ):
        assert (partial.func, partial.args, partial.keywords) == (kind, (), arguments)
        assert len(pickle.dumps(partial)) < 200


@pytest.mark.parametrize(
    "strategy",
    [LocalSGD(every=4, momentum=0.9), ElasticAveraging(beta=0.5), Gossip("random"), ParameterServer(4, every=2)],
)
def test_configuration_describes_a_strategy(estimator, strategy):
    settings = {field.name: getattr(strategy, field.name) for field in fields(strategy)}
    given = {"class_path": f"sparkdl.{type(strategy).__name__}", "init_args": settings}
    assert estimator({"strategy": given}).getStrategy() == strategy


def test_strategy_and_reducer_need_only_the_methods_without_a_default(estimator, refused, write):
    assert type(estimator({"strategy": "some_nets.Own"}).getStrategy()).__name__ == "Own"
    for name in ("Sums", "OfProtocol"):
        reduce = {"class_path": f"some_nets.{name}", "init_args": {"terms": 3}}
        given = {"class_path": "sparkdl.AllReduce", "init_args": {"reduce": reduce}}
        assert estimator({"strategy": given}).getStrategy().reduce.terms == 3
    given = {"class_path": "sparkdl.AllReduce", "init_args": {"reduce": "some_nets.Own"}}
    assert "does not implement protocol Reducer" in refused("--config", write({f"{ARGUMENTS}.strategy": given}))


def test_model_and_loss_may_be_functions_and_arguments_objects(estimator):
    """A function needs no annotations."""
    build = {"class_path": "some_nets.build", "init_args": {"hidden": 3}}
    texts = {"some_nets.build": "build", "some_nets.Net": "partial(Net)"}
    for model, text in [*texts.items(), (build, "partial(build, hidden=3)")]:
        factory = estimator({"model": model}).getModel()
        assert format_full_value(factory) == text
        assert allowed_types("model").describe(factory)
    model = {"class_path": "some_nets.Net", "init_args": {"activation": {"class_path": "torch.nn.Tanh"}}}
    objects = estimator({"model": model, "loss": "some_nets.zero_one"})
    assert isinstance(objects.getModel().keywords["activation"], nn.Tanh)
    assert objects.getLoss().__name__ == "zero_one"


def test_columns_and_callbacks_are_objects(estimator):
    specs = [{"name": "image", "dtype": "float32", "shape": [1, 28, 28]}, {"name": "age"}]
    callbacks = [{"class_path": "some_nets.Saves", "init_args": {"every": 3}}, "some_nets.Saves"]
    words = ["--estimator.columnSpecs", json.dumps(specs), "--estimator.callbacks", json.dumps(callbacks)]
    for objects in (estimator({"columnSpecs": specs, "callbacks": callbacks}), estimator({}, *words)):
        assert objects.getColumnSpecs() == [InputColumn("image", "float32", (1, 28, 28)), InputColumn("age")]
        result = [(type(callback), callback.every) for callback in objects.getCallbacks()]
        assert result == [(resolve_name("some_nets.Saves"), 3), (resolve_name("some_nets.Saves"), 1)]


@pytest.mark.parametrize("optimizer", ["adamw", "torch.optim.AdamW", {"class_path": "torch.optim.AdamW"}])
def test_optimizer_is_a_name_or_a_class(estimator, optimizer):
    settings = {"learningRate": 0.5, "optimizerArgs": {"weight_decay": 0.1}, "modelArgs": {"hidden": 7}}
    values = settings | {"optimizer": optimizer, "schedulerInterval": "step", "dropLast": True}
    found = estimator(values)
    objective, training = found.objective(), found.training()
    made = objective.open_optimizer(nn.Linear(1, 1).named_parameters())
    assert (type(made), made.defaults["lr"], made.defaults["weight_decay"]) == (torch.optim.AdamW, 0.5, 0.1)
    assert objective.model.keywords["hidden"] == 7
    assert (objective.scheduler_interval, training.drop_last) == ("step", True)


def test_arguments_that_a_configuration_leaves_out_stay_open(estimator):
    """jsonargparse binds every default, as if the user had given it."""
    decay = {"class_path": "torch.optim.AdamW", "init_args": {"weight_decay": 0.1}}
    cycle = {"class_path": "torch.optim.lr_scheduler.OneCycleLR", "init_args": {"max_lr": 0.5}}
    watched = {"monitor": "loss", "monitorMode": "min", "minDelta": 0.1, "keepBest": False, "patience": 3}
    rates = {"optimizer": decay, "learningRate": 0.5, "scheduler": cycle, "schedulerInterval": "step"}
    found = estimator(rates | watched)
    objective, training = found.objective().for_run(3, 2), found.training()
    optimizer = objective.open_optimizer(nn.Linear(1, 1).named_parameters())
    assert (optimizer.defaults["lr"], optimizer.defaults["weight_decay"]) == (0.5, 0.1)
    assert objective.open_scheduler(optimizer).total_steps == 6
    assert (objective.monitor, objective.monitor_mode) == ("loss", "min")
    assert (training.min_delta, training.keep_best, training.patience) == (0.1, False, 3)


@pytest.mark.parametrize("name", ["collate", "augment"])
def test_functions_are_import_paths_or_objects(estimator, name):
    path, noise = "some_nets.as_they_are", {"class_path": "some_nets.Noise", "init_args": {"scale": 0.5}}
    assert estimator({}).getOrDefault(name) is None
    for objects in (estimator({name: path}), estimator({}, f"--estimator.{name}", path)):
        assert objects.getOrDefault(name) is resolve_name("some_nets.as_they_are")
    for words, scale in (([], 0.5), ([f"--estimator.{name}.scale", "2.0"], 2.0)):
        function = estimator({name: noise}, *words).getOrDefault(name)
        assert (type(function), function.scale) == (resolve_name("some_nets.Noise"), scale)


@pytest.mark.parametrize("kind", [TorchClassifier, TorchRegressor, sparkdl.TorchEstimator])
def test_every_argument_is_a_key(nets, kind, capsys):
    with pytest.raises(SystemExit) as ended:
        run("train", ["--estimator.help", f"sparkdl.{kind.__name__}"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    names = [param.name for param in kind(model=nn.Identity, loss="mse").params]
    assert [name for name in names if f".{name} " not in printed] == []


def test_command_line_overrides_the_file(read, write):
    changes = {
        "--estimator.epochs": "7",
        "--estimator.model.hidden": "5",
        "--estimator.optimizer.init_args.lr": "0.5",
        "--estimator.strategy.bucket_bytes": "2000",
        "--test.options.header": "false",
        "--data.format": "orc",
        "--overwrite": "true",
    }
    job = read(write(), *(word for change in changes.items() for word in change))
    assert job.estimator.getEpochs() == 7
    assert job.estimator.getModel().keywords == {"hidden": 5}
    assert job.estimator.getOptimizer().keywords == {"lr": 0.5}
    assert job.estimator.getStrategy().bucket_bytes == 2000
    assert job.test.options == {"header": "false"}
    assert (job.data.path, job.data.format, job.overwrite) == ("train.parquet", "orc", True)
    job = read(write(), "--data.path=null", "--data.query", "select 1 as x", "--test=null")
    assert (job.data, job.test) == (Data(query="select 1 as x"), None)
    chosen = read(write(), "--estimator.strategy.reduce", "sparkdl.training.strategies.reducers.exact.Exact")
    assert chosen.estimator.getStrategy().reduce == AllReduce().reduce
    reducer = '{"class_path": "sparkdl.PowerSGD", "init_args": {"rank": 2, "warmup": 5}}'
    chosen = read(write(), "--estimator.strategy.reduce", reducer)
    assert chosen.estimator.getStrategy().reduce == sparkdl.PowerSGD(rank=2, warmup=5)


def test_print_config_repeats_the_job(read, write, capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        run("train", ["--config", write(), "--estimator.epochs", "9", "--print_config"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    (tmp_path / "again.yaml").write_text(printed)
    first, second = read(write(), "--estimator.epochs", "9"), read(str(tmp_path / "again.yaml"))
    assert (first.data, first.test, first.output) == (second.data, second.test, second.output)
    assert second.estimator.getEpochs() == 9
    for name in ("getModel", "getOptimizer"):
        one, other = (getattr(job.estimator, name)().keywords for job in (first, second))
        assert one.items() <= other.items()
    assert first.estimator.getStrategy() == second.estimator.getStrategy()
    assert yaml.safe_load(printed)["data"]["format"] == "parquet"  # the defaults too


@pytest.mark.parametrize("path", sorted((ROOT / "conf/train").glob("*.yaml")), ids=lambda path: path.name)
def test_configurations_of_the_repository_parse(read, path):
    if path.name == "adult.yaml":
        estimator = read(str(path), "--date", "2026-11-22", job="etl_train").stages[-1]
    else:
        estimator = read(str(path)).estimator
    assert allowed_types("model").describe(estimator.getModel())
    assert estimator.training().batch_size > 0


ALGORITHMS = {
    "parallel_sgd": sparkdl.ParallelSGD(rounds=10, epochs=2),
    "admm": sparkdl.ConsensusADMM(rho=0.1, rel_tol=1e-3, prox=sparkdl.ElasticNet(1e-3), solver=NewtonCG(iterations=20)),
    "lbfgs": sparkdl.LBFGS(l2=1e-3, gtol=1e-4),
    "federated": sparkdl.FederatedAveraging("client", client_fraction=0.25, rounds=15, epochs=3, batch_size=16),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_job_of_rounds_trains_by_the_algorithm_of_its_configuration(read, monkeypatch, name):
    job, trained = read(ROOT / f"conf/rounds/{name}.yaml", job=name), {}
    monkeypatch.setattr(train, "train", lambda data, estimator, **options: trained.update(options, by=estimator))
    getattr(train, name)(**vars(job))
    assert trained["by"].getStrategy() == job.algorithm == ALGORITHMS[name]
    assert isinstance(job.estimator, TorchClassifier)
    assert trained["output"] == job.output


# ---- mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "name", "words"),
    [
        ("estimator", "estimatr", "(did you mean 'estimator'?)"),
        ("data.path", "pth", "(did you mean 'path'?)"),
        (f"{ARGUMENTS}.epochs", "epoch", "(did you mean 'epochs'?)"),
        (f"{MODEL}.init_args", "init_arg", "(did you mean 'init_args'?)"),
        (f"{ARGUMENTS}.metrics.f1.init_args.num_classes", "classes", "(did you mean 'num_classes'?)"),
        ("estimator.class_path", "class_pth", "class_path"),
        (f"{ARGUMENTS}.strategy.init_args.bucket_bytes", "size", "strategy"),
    ],
)
def test_unknown_key_in_the_file(refused, write, key, name, words):
    printed = refused("--config", write(renamed={key: name}))
    assert name in printed
    assert words in printed


@pytest.mark.parametrize(
    ("changes", "arguments", "words"),
    [
        ({MODEL: "no_such_module.Net"}, "", "No module named 'no_such_module'"),
        ({f"{ARGUMENTS}.epochs": "many"}, "", "epochs"),
        ({f"{ARGUMENTS}.strategy": "collections.OrderedDict"}, "", "does not implement protocol Strategy"),
        ({f"{ARGUMENTS}.columnSpecs": [{"name": "image", "dtype": "complex"}]}, "", "complex"),
        ({f"{ARGUMENTS}.callbacks": [{"class_path": "some_nets.Saves", "init_args": {"evry": 3}}]}, "", "'every'"),
        ({"estimator.class_path": "sparkdl.TorchModel"}, "", "DistributedEstimator"),
        ({"estimator": {"epochs": 3}}, "", "estimator has no class_path"),
        ({}, "--estimatr.epochs 3", "--estimatr.epochs 3 (did you mean 'estimator'?)"),
        ({}, "--estimator.batchsize 3", "(did you mean 'batchSize'?)"),
        ({}, "--estimator.model.hiden 3", "(did you mean 'hidden'?)"),
        ({}, "--zzz 3", "error: unrecognized arguments: --zzz 3\n"),
        ({}, "--estimator.epochs 0", "epochs is 0"),
        ({}, "--estimator.featuresCol a --estimator.inputCols [b]", "only one of them"),
        ({}, "--estimator sparkdl.ml.estimator.DistributedEstimator", "estimator has no class_path"),
    ],
)
def test_mistake_ends_the_command_before_spark_starts(refused, write, changes, arguments, words):
    assert words in refused("--config", write(changes), *arguments.split())


def test_missing_file_argument_and_purpose(refused, tmp_path):
    assert "nowhere.yaml" in refused("--config", tmp_path / "nowhere.yaml")
    assert "model" in refused("--data.path", "here", job="predict").splitlines()[-1]
    assert "output, label or both" in refused("--model", "model", "--data.path", "data", job="predict")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "rows come from nowhere; expected exactly one of path, table and query"),
        ({"path": "here", "table": "db.rows", "query": "select 1"}, "path and table and query"),
        ({"table": "db.rows", "schema": "x int"}, "schema is ignored if rows come from a table"),
        ({"table": "db.rows", "format": "csv"}, "format is ignored if rows come from a table"),
        ({"query": "select 1", "options": {"header": True}}, "options is ignored if rows come from a query"),
    ],
)
def test_data_rejects(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        Data(**arguments)


def test_two_places_of_rows_end_every_command(refused):
    """jsonargparse wraps the error of an optional argument, such as the test rows of a training."""
    rows, message = ["--data.path", "here", "--data.table", "t"], "path and table; expected exactly one"
    test = ["--test.path", "here", "--test.table", "t"]
    assert message in refused("--estimator", "sparkdl.TorchRegressor", "--data.path", "here", *test)
    for job in ("predict", "evaluate"):
        assert message in refused("--model", "model", *rows, "--output", "out", job=job)


def test_metric_has_an_import_path_or_a_name(read, write):
    for name in ("torchmetrics.classification.MulticlassF1Score", "MulticlassF1Score"):
        called = read(write({f"{ARGUMENTS}.metrics.f1.class_path": name}))
        assert type(called.estimator.getMetrics()["f1"]).__name__ == "MulticlassF1Score"
