"""spark-submit that is sent SIGTERM: the job saves, exits with 143, and the same command goes on from there."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from sparkdl.cli.commands import run
from tests.sessions import ROOT
from tests.training.test_digits import digits, finish, submit  # noqa: F401 - a fixture

pytestmark = [pytest.mark.chaos, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(420)]

STEP = 5
SELDOM = ("--estimator.checkpointInterval", "1000")  # than the run has steps
HOOKS = """
import threading
import time
from pathlib import Path

class Holds:
    '''Leaves a file at a step, and waits there until this member has heard that it is asked to stop; once.'''

    def __init__(self, folder: str, step: int):
        self.folder, self.step = Path(folder), step

    def on_step(self, run):
        mark = self.folder / "mark"
        if run.clock.step == self.step and not mark.exists():
            mark.touch()
            while not self.heard():
                time.sleep(0.01)

    def heard(self):
        listens = any(thread.name == "sparkdl-stops" for thread in threading.enumerate())
        return not listens and list(self.folder.glob("run/checkpoints/attempts/*.stop"))
"""


CONFIG = ("--config", "conf/train/digits.yaml")


def arguments(data: Path, folder: Path, *, hold: bool) -> list[str]:
    """Of two epochs on the digits, in which rank 0 may wait at a step for the request to stop."""
    hook = {"class_path": "holding.Holds", "init_args": {"folder": str(folder), "step": STEP}}
    changes = {
        "data.path": data / "train",
        "test": "null",
        "output": folder / "model",
        "estimator.runDir": folder / "run",
        "estimator.epochs": 2,
        "estimator.hooks": json.dumps([hook] if hold else []),
    }
    return [str(word) for key, value in changes.items() for word in (f"--{key}", value)]


def start(data: Path, folder: Path, *more):
    """Start them by spark-submit."""
    (folder / "holding.py").write_text(HOOKS)
    modules = ("examples/digits_net.py", folder / "holding.py")
    changes = arguments(data, folder, hold=True)
    return submit("train", *CONFIG, *changes, *more, local=folder / "local", modules=modules, options=())


def driver(jvm: int) -> int:
    """The process id of the Python driver that a spark-submit has started."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == jvm and any(word.endswith(b"train.py") for word in command[1:2]):
            return int(folder.name)
    raise AssertionError(f"process {jvm} has no Python driver")


def wait_for(mark: Path, process) -> None:
    while not mark.exists():
        assert process.poll() is None, finish(process)[0]
        time.sleep(0.05)


def send(process, receiver: str) -> None:
    python = driver(process.pid)
    for each in {"driver": [python], "JVM": [process.pid], "both": [python, process.pid]}[receiver]:
        os.kill(each, signal.SIGTERM)


def result(folder: Path) -> tuple[bytes, list[dict[str, float]]]:
    """The weights, and of the history what does not depend on time."""
    (weights,) = (folder / "model").rglob("*.safetensors")
    history = json.loads((folder / "run/history.json").read_text())
    return weights.read_bytes(), [{name: row[name] for name in ("epoch", "step", "samples", "loss")} for row in history]


@pytest.fixture(scope="module")
def here(spark, nets, digits, tmp_path_factory):  # noqa: F811 - the fixture
    """Run the job in this process, on its session, which outlives the job."""
    modules = tmp_path_factory.mktemp("modules")
    (modules / "holding.py").write_text(HOOKS)
    for module in (ROOT / "examples/digits_net.py", modules / "holding.py"):
        spark.sparkContext.addPyFile(str(module))

    def here(folder: Path, *more, hold: bool = False) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(ROOT)
            patch.syspath_prepend(modules)
            patch.setattr(type(spark), "__exit__", lambda *_: None)
            return run("train", [*CONFIG, *arguments(digits, folder, hold=hold), *more])

    return here


@pytest.fixture(scope="module")
def undisturbed(here, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    assert here(folder) == 0
    return result(folder)


@pytest.mark.parametrize("receiver", ["driver", "JVM", "both"])
def test_a_job_that_is_sent_sigterm_saves_and_goes_on_later(digits, tmp_path, undisturbed, here, receiver):  # noqa: F811
    process = start(digits, tmp_path, *SELDOM)
    wait_for(tmp_path / "mark", process)
    send(process, receiver)
    said, code = finish(process)
    assert code == 143, said
    assert re.search(r"stopped: .* saved .*\bstep \d+", said), said
    (saved,) = (tmp_path / "run/checkpoints").glob("attempt-*/manifest.json")
    assert STEP <= json.loads(saved.read_text())["manifest"]["clock"]["step"] < 24
    assert not (tmp_path / "model").exists()

    if receiver == "driver":  # by the same command once; the others left the same on the disk
        said, code = finish(start(digits, tmp_path, *SELDOM))
        assert code == 0, said
    else:
        assert here(tmp_path, *SELDOM, hold=True) == 0
    assert result(tmp_path) == undisturbed


def test_a_job_without_checkpoints_is_ended_at_once(digits, tmp_path):  # noqa: F811 - the fixture
    process = start(digits, tmp_path, "--estimator.checkpointInterval", "never")
    wait_for(tmp_path / "mark", process)
    send(process, "JVM")
    said, code = finish(process)
    assert code == 143, said
    assert "stopped: the run was asked to stop (Spark's JVM got SIGTERM) and was not saved" in said


def test_a_job_of_rounds_ends_with_the_round_that_it_is_in(digits, tmp_path):  # noqa: F811 - the fixture
    changes = {"data.path": digits / "train", "estimator.runDir": tmp_path / "run", "algorithm.rounds": 10_000}
    arguments = [word for key, value in changes.items() for word in (f"--{key}", value)]
    config = ("--config", "conf/rounds/parallel_sgd.yaml", "--test", "null", "--output", "null")
    process = submit("parallel_sgd", *config, *arguments, local=tmp_path / "local", options=())
    checkpoints = tmp_path / "run/checkpoints"
    while not list(checkpoints.glob("attempt-*/manifest.json")):
        assert process.poll() is None, finish(process)[0]
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    said, code = finish(process)
    assert code == 143, said
    found = re.search(r"stopped: .* ended after round (\d+)", said)
    assert found, said
    manifests = [json.loads(path.read_text()) for path in checkpoints.glob("attempt-*/manifest.json")]
    assert max(each["manifest"]["clock"]["step"] for each in manifests) == int(found[1])
