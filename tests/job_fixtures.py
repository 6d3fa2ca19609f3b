"""Fixtures of the entry points in jobs/, which are modules on the path, as spark-submit puts them there."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = (
    *("command", "day", "ending", "etl", "etl_train", "evaluate", "ledger", "metrics", "predict", "report"),
    *("reading", "saved", "train"),
)
NETS = """
from torch import nn

class Net(nn.Module):
    def __init__(self, hidden: int = 8, activation: nn.Module | None = None):
        super().__init__()

def build(hidden: int, depth: int = 1) -> nn.Module:
    return nn.Linear(hidden, depth)

def zero_one(output, target):
    return (output.argmax(1) != target).float()

def as_they_are(inputs, target, generator=None):
    return inputs, target

class Noise:
    def __init__(self, scale: float = 1.0):
        self.scale = scale

    def __call__(self, inputs, target, generator=None):
        return inputs, target

class Saves:
    def __init__(self, every: int = 1):
        self.every = every

    def on_epoch(self, run):
        pass
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """The modules of jobs/, and a module of nets, on the path as spark-submit puts them there."""
    nets = tmp_path_factory.mktemp("nets")
    (nets / "some_nets.py").write_text(NETS)
    with pytest.MonkeyPatch.context() as patch:
        for folder in (nets, ROOT / "examples", ROOT / "jobs"):
            patch.syspath_prepend(folder)
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})


@pytest.fixture
def read(jobs):
    """What ``train``, or another job, is called with, given a configuration file and further arguments."""

    def read(*arguments, job="train"):
        called = {}

        @functools.wraps(getattr(getattr(jobs, job), job))
        def called_with(**given):
            called.update(given)

        assert jobs.command.main(called_with, ["--config", *arguments]) == 0
        return SimpleNamespace(**called)

    return read


@pytest.fixture
def refused(jobs, capsys):
    """What is said of a configuration that is refused."""

    def refused(*arguments, job="train"):
        with pytest.raises(SystemExit) as ended:
            jobs.command.main(getattr(getattr(jobs, job), job), arguments)
        assert ended.value.code == 2
        return capsys.readouterr().err

    return refused
