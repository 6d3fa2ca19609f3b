"""spark-submit gets SIGTERM: the job saves, exits with 143, and the same command resumes."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.sessions import ROOT
from tests.training.test_digits import digits as digits
from tests.training.test_digits import finish, submit, words

pytestmark = [pytest.mark.chaos, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

STEP = 5
HOOKS = """
import threading
import time
from pathlib import Path

class Holds:
    '''Once, leaves a file at a step, and waits there until this worker has received the request to stop.'''

    every_rank = False

    def __init__(self, folder: str, step: int):
        self.folder, self.step = Path(folder), step

    def on_step(self, run):
        mark = self.folder / "mark"
        if run.clock.step == self.step and not mark.exists():
            mark.touch()
            while not self.requested():
                time.sleep(0.01)

    def requested(self):
        polls = any(thread.name == "sparkdl-stops" for thread in threading.enumerate())
        return not polls and list(self.folder.glob("run/checkpoints/attempts/*.stop"))
"""


def arguments(data: Path, folder: Path, *, hold: bool) -> list[str]:
    """Two epochs on the digits, in which workers may wait at a step for the request to stop."""
    callback = {"class_path": "holding.Holds", "init_args": {"folder": str(folder), "step": STEP}}
    changes = {
        "config": "conf/train/digits.yaml",
        "data.path": data / "train",
        "test": "null",
        "output": folder / "model",
        "estimator.runDir": folder / "run",
        "estimator.model.channels": 4,
        "estimator.epochs": 2,
        "estimator.checkpointInterval": 1000,  # more steps than the run has
        "estimator.callbacks": json.dumps([callback] if hold else []),
    }
    return words(**changes)


def result(folder: Path) -> tuple[bytes, list[dict[str, float]]]:
    """The weights, and the columns of the history that do not depend on time."""
    (weights,) = (folder / "model").rglob("*.safetensors")
    history = json.loads((folder / "run/history.json").read_text())
    return weights.read_bytes(), [{name: row[name] for name in ("epoch", "step", "samples", "loss")} for row in history]


def test_job_saves_after_sigterm_to_the_jvm_and_resumes_bit_identical(digits, job, tmp_path):
    """SIGTERM to the driver makes the same request: test_jobs.py."""
    stopped, undisturbed = tmp_path / "stopped", tmp_path / "undisturbed"
    stopped.mkdir()
    (stopped / "holding.py").write_text(HOOKS)
    modules = (ROOT / "examples/digits_net.py", stopped / "holding.py")
    process = submit("train", *arguments(digits, stopped, hold=True), local=tmp_path / "local", modules=modules)
    while not (stopped / "mark").exists():
        assert process.poll() is None, finish(process)[0]
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    printed, code = finish(process)
    assert code == 143, printed
    assert re.search(r"stopped: .* checkpoint is of step \d+", printed), printed
    (saved,) = (stopped / "run/checkpoints").glob("attempt-*/manifest.json")
    assert STEP <= json.loads(saved.read_text())["manifest"]["clock"]["step"] < 24
    assert not (stopped / "model").exists()

    for folder in (stopped, undisturbed):
        code, printed = job("train", *arguments(digits, folder, hold=False))
        assert code == 0, printed
    assert result(stopped) == result(undisturbed)
