"""What counts of code and of what it names: not how it is written, nor what is a library's."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from sparkdl.ensembles.sources import attributes, module_of, of_library, of_program
from tests.ensembles.test_telling import Slotted, Weighted, told

CODE = """
{more}
import torch

SIZE = {size}

{more}
def size():
    {doc}
    return SIZE + {add}

class Base:
    {doc}
    def __init__(self):
        self.size = size()

class Net(Base):
    def forward(self, x):
        {doc}
        class Inner:
            {doc}
            value = None
        return x * {factor}

def make():
    {doc}
    if Net is None:
        return None
    return Net()
"""
PLAIN = {"more": "", "doc": "", "size": 3, "add": 0, "factor": 2}


def module(**given: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"__name__": "__main__"}
    exec(CODE.format(**PLAIN | given), found)  # as a notebook does
    return found


def test_docstrings_and_places_do_not_count():
    plain, moved = module(), module(more="# more\n\n", doc="'''What it is.'''")
    assert moved["make"].__doc__
    for name in ("make", "Net", "size"):
        assert told(plain[name]) == told(moved[name])
        assert told(plain[name]) != name


@pytest.mark.parametrize("given", [{"size": 4}, {"add": 1}, {"factor": 3}])
def test_the_code_beside_a_function_counts(given):
    assert told(module()["make"]) != told(module(**given)["make"])


GLOBALS = """
import functools, logging, threading
from dataclasses import dataclass
import torch
from torch import nn
from torch.nn import functional as F

@dataclass
class Config:
    dropout: float

class Plain:
    def __init__(self, by):
        self.by, self.lock = by, threading.Lock()

@functools.lru_cache
def cached(x):
    return x + {cached}

class Holder:
    config = Config({held})
    class Inner:
        value = {inner}

LOGGER, LOCK = logging.getLogger("{logger}"), threading.Lock()
CONFIG, PLAIN, NAMES = Config({config}), Plain({plain}), {{"a", {name!r}}}
CUT, LOSS, TYPE = functools.partial(torch.clamp, max={cut}), F.{loss}, torch.{dtype}
LAYERS, CHOICE = {{"one": nn.Linear, "loss": F.{choice}}}, [CONFIG]
CHOICE.append(CHOICE)

def make():
    LOGGER.info(LOCK)
    return CONFIG, PLAIN, NAMES, CUT, LOSS, TYPE, LAYERS, CHOICE, cached(1), Holder
"""
GIVEN: dict[str, Any] = {
    "cached": 1,
    "held": 1,
    "inner": 1,
    "logger": "a",
    "config": 0.1,
    "plain": 1,
    "name": "b",
    "cut": 1,
    "loss": "mse_loss",
    "dtype": "float32",
    "choice": "l1_loss",
}


def of_globals(**given: Any) -> Any:
    found: dict[str, Any] = {"__name__": "notebook"}
    with pytest.MonkeyPatch.context() as patch:  # a data class looks its module up
        patch.setitem(sys.modules, "notebook", ModuleType("notebook"))
        exec(GLOBALS.format(**GIVEN | given), found)
        return told(found["make"])


@pytest.mark.parametrize(
    ("given", "count"),
    [
        *(({name: 2}, True) for name in ("cached", "held", "inner", "config", "plain", "name", "cut")),
        *(({"loss": "l1_loss"}, True), ({"dtype": "float64"}, True), ({"choice": "mse_loss"}, True)),
        ({"logger": "b"}, False),
    ],
)
def test_the_globals_of_the_program_count(given, count):
    assert of_globals() == of_globals()
    assert (of_globals(**given) != of_globals()) == count


def test_whose_code_is():
    @functools.wraps(torch.relu)
    def own() -> None:
        """Says that it is of torch."""

    assert module_of(own) == __name__
    assert not any(map(of_library, (own, Slotted)))
    assert all(map(of_library, (torch.relu, len, torch.nn.Linear)))
    assert of_program(Slotted, "elsewhere")
    assert not of_program(pytest.MonkeyPatch, __name__)  # which is installed
    assert not of_program(torch.nn.Linear, "torch")


def test_attributes_of_an_object():
    weighted = Weighted(2)
    assert weighted.half == 1
    assert attributes(weighted) == {"weight": 2}
    assert attributes(Slotted(1)) == {"by": 1}
