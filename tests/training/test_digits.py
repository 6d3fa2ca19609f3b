"""The digits, from Parquet to predictions, as ``make demo`` has them: spark-submit and its executors."""

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

from tests.sessions import driver_environment

ROOT = Path(__file__).resolve().parents[2]


IN_DRIVER = ("--master", "local[2]")
"""Options of spark-submit with which tasks run in the driver's JVM."""


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The digits as the example writes them."""
    folder = tmp_path_factory.mktemp("digits")
    subprocess.run([sys.executable, ROOT / "examples/digits_to_parquet.py", folder], check=True, timeout=60)
    return folder


def test_digits(digits):
    train, test = pq.read_table(digits / "train"), pq.read_table(digits / "test")
    assert (train.num_rows, test.num_rows) == (1437, 360)
    assert [str(field.type) for field in train.schema] == ["list<element: float>", "int64"]
    pixels = np.stack(train["features"].to_numpy())
    assert pixels.shape == (1437, 64)
    assert (pixels.min(), pixels.max()) == (0, 1)
    assert np.bincount(test["label"]).min() >= 34  # each class in proportion


def submit(job, *arguments, local, modules=("examples/digits_net.py",), options=IN_DRIVER):
    """Start a job, in a process group of its own; spark-submit itself puts stdout and stderr together.

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
    """The exit code and what was printed; nothing of the process group is left."""
    try:
        return process.communicate(timeout=timeout)[0], process.returncode
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def train(digits, tmp_path):
    """Start the training of conf/train/digits.yaml on files below ``tmp_path``."""

    def train(*arguments, options=()):
        places = {
            "data.path": digits / "train",
            "test.path": digits / "test",
            "estimator.runDir": tmp_path / "run",
            "output": tmp_path / "model",
        }
        changes = [word for key, value in places.items() for word in (f"--{key}", value)]
        words = ("--config", "conf/train/digits.yaml", *changes, *arguments)
        return submit("train", *words, local=tmp_path / "local", options=options)

    return train


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(420)
def test_digits_from_parquet_to_predictions(train, digits, tmp_path):
    said, code = finish(train())
    assert code == 0, said
    assert "fit: epoch" in said
    assert float(re.search(r"held-out accuracy (\S+)", said)[1]) >= 0.97
    assert len(json.loads((tmp_path / "run/history.json").read_text())) == 16

    places = {
        "model": tmp_path / "model",
        "data.path": digits / "test",
        "output": tmp_path / "predictions",
        "label": "label",
    }
    said, code = finish(
        submit(
            "predict",
            *(word for key, value in places.items() for word in (f"--{key}", value)),
            local=tmp_path / "local",
        )
    )
    assert code == 0, said
    predictions = pq.read_table(tmp_path / "predictions").to_pandas()
    right = int((predictions["label"] == predictions["prediction"]).sum())
    assert len(predictions) == 360
    assert f"accuracy {right / 360:.4f} ({right} of 360 rows)" in said
    assert "confusion" in said


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(420)
def test_what_fails_says_so_without_the_jvm(train, tmp_path):
    said, code = finish(train("--data.path", tmp_path / "nowhere", options=IN_DRIVER))
    assert code == 1
    assert "\tat " not in said.partition("error: [PATH_NOT_FOUND]")[2]
    assert "error: [PATH_NOT_FOUND]" in said
    (tmp_path / "model").mkdir()
    before, code = finish(train("--overwrite", "false", options=IN_DRIVER))
    assert code == 2
    assert "model exists" in before
    assert "fit:" not in before


@pytest.mark.chaos
@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_interrupt_ends_the_job_with_130(train):
    process = train("--estimator.epochs", "100000")
    said = ""
    while "fit: epoch" not in said:
        said += process.stdout.read(1)
        assert process.poll() is None, said
    os.killpg(process.pid, signal.SIGINT)
    assert finish(process)[1] == 130
