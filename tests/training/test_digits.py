"""The digits, from Parquet to predictions, as in ``make demo``: spark-submit and its executors."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from sparkdl.cli.commands import run
from tests.sessions import ROOT, driver_environment

IN_DRIVER = ("--master", "local[2]")
"""Options of spark-submit with which tasks run in the driver's JVM."""


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The digits as the example writes them."""
    folder = tmp_path_factory.mktemp("digits")
    subprocess.run([sys.executable, ROOT / "examples/digits_to_parquet.py", folder], check=True, timeout=60)
    return folder


def submit(job, *arguments, local, modules=("examples/digits_net.py",), options=IN_DRIVER):
    """Start a job in its own process group; spark-submit itself joins stdout and stderr.

    By default its tasks run in the driver's JVM. With ``options=()`` they run on the executors of
    conf/spark/local.conf, which take ten seconds of processor time to start.
    """
    command = [
        Path(sys.executable).parent / "spark-submit",
        *("--properties-file", "conf/spark/local.conf", "--conf", f"spark.executorEnv.PYTHONPATH={ROOT}"),
        *options,
        *("--py-files", ",".join(map(str, modules)), f"jobs/{job}.py", *map(str, arguments)),
    ]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=driver_environment(local),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process, timeout=200):
    """The output and the exit code; ends the whole process group."""
    try:
        return process.communicate(timeout=timeout)[0], process.returncode
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def words(**values):
    return [str(word) for key, value in values.items() for word in (f"--{key}", value)]


@pytest.fixture
def arguments(digits, tmp_path):
    """Arguments of ``train``: the configuration conf/train/digits.yaml with files below ``tmp_path``."""
    places = {"data.path": digits / "train", "test.path": digits / "test", "estimator.runDir": tmp_path / "run"}
    return ["--config", "conf/train/digits.yaml", *words(**places, output=tmp_path / "model")]


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(420)
def test_from_parquet_to_predictions(arguments, digits, tmp_path):
    train, test = pq.read_table(digits / "train"), pq.read_table(digits / "test")
    assert (train.num_rows, test.num_rows) == (1437, 360)
    assert [str(field.type) for field in train.schema] == ["list<element: float>", "int64"]
    assert np.bincount(test["label"]).min() >= 34  # each class in proportion

    output, code = finish(submit("train", *arguments, local=tmp_path / "local", options=()))
    assert code == 0, output
    assert "fit: epoch" in output
    assert float(re.search(r"held-out accuracy (\S+)", output)[1]) >= 0.97
    assert len(json.loads((tmp_path / "run/history.json").read_text())) == 16

    places = {"model": tmp_path / "model", "data.path": digits / "test", "output": tmp_path / "predictions"}
    output, code = finish(submit("predict", *words(**places, label="label"), local=tmp_path / "local"))
    assert code == 0, output
    predictions = pq.read_table(tmp_path / "predictions").to_pandas()
    right = int((predictions["label"] == predictions["prediction"]).sum())
    assert len(predictions) == 360
    assert f"accuracy {right / 360:.4f} ({right} of 360 rows)" in output
    assert "confusion" in output


def test_failed_training_names_cause_without_jvm_trace(spark, arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(type(spark), "__exit__", lambda *_: None)  # the session outlives the job
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.chdir(ROOT)
    assert run("train", [*arguments, "--data.path", str(tmp_path / "nowhere")]) == 1
    error = capsys.readouterr().err
    assert "error: [PATH_NOT_FOUND]" in error
    assert "\tat " not in error.partition("error: [PATH_NOT_FOUND]")[2]
    (tmp_path / "model").mkdir()
    assert run("train", [*arguments, "--overwrite", "false"]) == 2
    error = capsys.readouterr().err
    assert "model exists" in error
    assert "fit:" not in error


@pytest.mark.chaos
@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_interrupt_ends_job_with_130(arguments, tmp_path):
    process = submit("train", *arguments, "--estimator.epochs", "100000", local=tmp_path / "local")
    output = ""
    while "fit: epoch" not in output:
        output += process.stdout.read(1)
        assert process.poll() is None, output
    os.killpg(process.pid, signal.SIGINT)
    assert finish(process)[1] == 130
