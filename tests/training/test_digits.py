"""Failures of ``make demo``'s training; tests/docs/test_commands.py runs the demo."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl.cli.commands import run
from tests.sessions import ROOT, driver_environment


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The digits as the example writes them."""
    folder = tmp_path_factory.mktemp("digits")
    subprocess.run([sys.executable, ROOT / "examples/digits_to_parquet.py", folder], check=True, timeout=240)
    return folder


def submit(job, *arguments, local, modules=("examples/digits_net.py",)):
    """Start a job in its own process group; spark-submit itself joins stdout and stderr.

    Its tasks run in the driver's JVM; executors take ten seconds of processor time to start.
    """
    command = [
        Path(sys.executable).parent / "spark-submit",
        *("--properties-file", "conf/spark/local.conf", "--conf", f"spark.executorEnv.PYTHONPATH={ROOT}"),
        *("--master", "local[2]", "--py-files", ",".join(map(str, modules)), f"jobs/{job}.py", *map(str, arguments)),
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


def finish(process, timeout=500):
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


def test_failed_training_names_cause_without_jvm_trace(spark, arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(type(spark), "stop", lambda *_: None)  # the session outlives the job
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
