"""Fixtures of configurations: a module of nets, and the objects that a command makes."""

import functools
from pkgutil import resolve_name
from types import SimpleNamespace

import pytest

from sparkdl.cli import app
from sparkdl.cli.commands import COMMANDS, run
from tests.sessions import ROOT

NETS = """
from torch import nn

from sparkdl.training.strategies.reducers import Reducer

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

class Own:
    def attach(self, replica, group):
        pass

class WithCost(Own):
    def exchanges(self, parameters, hosts):
        return []

class Sums:
    def __init__(self, terms: int = 1):
        self.terms = terms

    def open(self, buckets, group):
        pass

class OfProtocol(Sums, Reducer):
    pass
"""


@pytest.fixture(scope="module")
def nets(tmp_path_factory):
    """A module of nets, and those of examples/, on the path."""
    folder = tmp_path_factory.mktemp("nets")
    (folder / "some_nets.py").write_text(NETS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.syspath_prepend(ROOT / "examples")
        yield folder


@pytest.fixture
def read(nets):
    """The arguments that a job gets from a configuration file and the command line."""

    def read(*arguments, job="train"):
        called = SimpleNamespace()

        @functools.wraps(resolve_name(COMMANDS[job].job))
        def called_with(**arguments):
            vars(called).update(arguments)

        assert app.main(called_with, ["--config", *map(str, arguments)]) == 0
        return called

    return read


@pytest.fixture
def refused(nets, capsys):
    """The error output of a command with a bad configuration."""

    def refused(*arguments, job="train"):
        try:
            code = run(job, [str(word) for word in arguments])
        except SystemExit as ended:
            code = ended.code
        assert code == 2
        return capsys.readouterr().err

    return refused
