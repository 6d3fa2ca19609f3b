"""Commands without Spark: configurations, mistakes in them, exit codes."""

from __future__ import annotations

import functools
import json
import os
import pickle
import signal
from functools import partial

import pytest
import torch
import yaml
from pyspark.errors import PySparkValueError
from torch import nn

from sparkdl import AllReduce, TorchClassifier, TorchRegressor
from sparkdl.cli import app
from sparkdl.cli.commands import run
from sparkdl.cluster.shutdown import stop_requested
from sparkdl.errors import ErrorContext, InvalidInput, Stopped, WorkerFailed, WorkerLost
from sparkdl.ml.persistence.formatting import format_full_value
from sparkdl.ml.persistence.param_values import allowed_types
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
            "inputCols": ["features"],
            "epochs": 4,
        },
    },
    "output": "model",
}
MODEL = "estimator.init_args.model"


@pytest.fixture
def write(tmp_path):
    """A configuration file like ``CONFIG``, with changed values and renamed keys, by their dotted paths."""

    def write(changes=(), renamed=()):
        config = json.loads(json.dumps(CONFIG))
        for key, value in dict(changes).items():
            *path, last = key.split(".")
            functools.reduce(dict.__getitem__, path, config)[last] = value
        for key, name in dict(renamed).items():
            *path, last = key.split(".")
            section = functools.reduce(dict.__getitem__, path, config)
            section[name] = section.pop(last)
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump(config))
        return str(file)

    return write


# ---- configurations ---------------------------------------------------------------------------------------------


def test_configuration_describes_the_arguments(read, write):
    job = read(write())
    assert (job.data.path, job.data.format, job.data.options) == ("train.parquet", "parquet", {})
    assert (job.test.path, job.test.format, job.test.options) == ("test.csv", "csv", {"header": True})
    assert job.output == "model"
    estimator = job.estimator
    assert type(estimator) is TorchClassifier
    assert (estimator.getInputCols(), estimator.getEpochs()) == (["features"], 4)
    assert estimator.getLoss().label_smoothing == 0.1
    assert estimator.getMetrics()["f1"].num_classes == 10
    assert estimator.getStrategy() == AllReduce(bucket_bytes=1000)
    for found, kind, given in (
        (estimator.getOptimizer(), torch.optim.SGD, {"lr": 0.1}),
        (estimator.getScheduler(), torch.optim.lr_scheduler.StepLR, {"step_size": 3}),
    ):
        assert (found.func, found.args, found.keywords) == (kind, (), given)
        assert len(pickle.dumps(found)) < 200
    assert format_full_value(estimator.getModel()) == "partial(Net, hidden=32)"


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("some_nets.build", "build"),
        ({"class_path": "some_nets.build", "init_args": {"hidden": 3}}, "partial(build, hidden=3)"),
        ("some_nets.Net", "partial(Net)"),
    ],
)
def test_model_may_be_a_function(read, write, model, text):
    found = read(write({MODEL: model})).estimator.getModel()
    assert format_full_value(found) == text
    assert allowed_types("model").describe(found)


def test_arguments_of_a_model_may_be_objects_and_a_loss_a_function_without_annotations(read, write):
    model = {"class_path": "some_nets.Net", "init_args": {"activation": {"class_path": "torch.nn.Tanh"}}}
    found = read(write({MODEL: model, "estimator.init_args.loss": "some_nets.zero_one"})).estimator
    assert isinstance(found.getModel(), partial)
    assert isinstance(found.getModel().keywords["activation"], nn.Tanh)
    assert found.getLoss().__name__ == "zero_one"


def test_missing_arguments_keep_the_default(read, write):
    estimator = {"class_path": "sparkdl.TorchRegressor", "init_args": {"model": "some_nets.Net"}}
    found = read(write({"estimator": estimator})).estimator
    assert type(found) is TorchRegressor
    assert {param.name for param in found.extractParamMap() if found.isSet(param)} <= {"model", "labelCol"}
    assert found.getStrategy() == AllReduce()


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
    chosen = read(write(), "--estimator.strategy.reduce", "sparkdl.training.strategies.reducers.Exact")
    assert chosen.estimator.getStrategy().reduce == AllReduce().reduce


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


# ---- mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "name", "words"),
    [
        ("estimator", "estimatr", "(did you mean 'estimator'?)"),
        ("data.path", "pth", "(did you mean 'path'?)"),
        ("estimator.init_args.epochs", "epoch", "(did you mean 'epochs'?)"),
        (f"{MODEL}.init_args", "init_arg", "(did you mean 'init_args'?)"),
        (f"{MODEL}.init_args.hidden", "hiden", "(did you mean 'hidden'?)"),
        ("estimator.init_args.optimizer.init_args.lr", "lrr", "(did you mean 'lr'?)"),
        ("estimator.init_args.metrics.f1.init_args.num_classes", "classes", "(did you mean 'num_classes'?)"),
        ("estimator.class_path", "class_pth", "class_path"),
        (f"{MODEL}.class_path", "classpath", "class_path"),
        ("estimator.init_args.strategy.init_args.bucket_bytes", "size", "strategy"),
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
        ({MODEL: "some_nets.Nett"}, "", "has no attribute 'Nett'"),
        ({"estimator.init_args.epochs": "many"}, "", "epochs"),
        ({"estimator.init_args.strategy": "collections.OrderedDict"}, "", "does not implement protocol Strategy"),
        ({"estimator.class_path": "sparkdl.TorchModel"}, "", "DistributedEstimator"),
        ({"estimator": {"epochs": 3}}, "", "estimator has no class_path"),
        ({}, "--estimatr.epochs 3", "--estimatr.epochs 3 (did you mean 'estimator'?)"),
        ({}, "--test.formt 3", "(did you mean 'format'?)"),
        ({}, "--estimator.batchsize 3", "(did you mean 'batchSize'?)"),
        ({}, "--estimator.model.hiden 3", "(did you mean 'hidden'?)"),
        ({}, "--estimator.optimizer.init_args.lrr 3", "(did you mean 'lr'?)"),
        ({}, "--zzz 3", "error: unrecognized arguments: --zzz 3\n"),
        ({}, "--estimator.epochs 0", "epochs is 0"),
        ({}, "--estimator sparkdl.ml.estimator.DistributedEstimator", "estimator has no class_path"),
        ({}, "--estimator.class_path sparkdl.TorchEstimator", "validationIndicatorCol"),
    ],
)
def test_mistake_ends_the_command_before_spark_starts(refused, write, changes, arguments, words):
    assert words in refused("--config", write(changes), *arguments.split())


def test_missing_file_argument_and_purpose(refused, tmp_path):
    assert "nowhere.yaml" in refused("--config", tmp_path / "nowhere.yaml")
    assert "model" in refused("--data.path", "here", job="predict").splitlines()[-1]
    assert "output, label or both" in refused("--model", "model", "--data.path", "data", job="predict")


# ---- exit codes -------------------------------------------------------------------------------------------------


def ending(error):
    def job(*, data: str = ""):
        """Do nothing but end."""
        if error is not None:
            raise error

    return job


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (None, 0, ""),
        (InvalidInput("epochs is 0."), 2, "error: epochs is 0.\n"),
        (
            WorkerFailed("it broke", place=ErrorContext(rank=1), trace="the traceback"),
            1,
            "error: it broke [rank 1]\n\nthe traceback\n",
        ),
        (PySparkValueError("no\n\tat org.apache.X(Y.java:1)\nDriver stacktrace:\n"), 1, "error: no\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (Stopped("saved at step 3"), 143, "stopped: saved at step 3\n"),
    ],
)
def test_exit_code_and_message(capsys, error, code, printed):
    assert app.main(ending(error), []) == code
    assert capsys.readouterr().err == printed


def test_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        app.main(ending(ZeroDivisionError()), [])


@pytest.mark.parametrize(("error", "code"), [(WorkerLost("killed"), 143), (InvalidInput("epochs is 0."), 2), (None, 0)])
def test_error_after_sigterm_counts_as_the_stop(error, code):
    def job(*, data: str = ""):
        """Get SIGTERM, and end."""
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop_requested() == "the driver got SIGTERM"
        ending(error)()

    before = signal.getsignal(signal.SIGTERM)
    assert app.main(job, [], stops=True) == code
    assert stop_requested() is None
    assert signal.getsignal(signal.SIGTERM) is before
