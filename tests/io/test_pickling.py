"""Errors name what cannot be sent to workers, and what workers lack."""

import sys
import threading
from functools import partial
from types import ModuleType

import cloudpickle
import pytest
from torch import nn

from sparkdl.errors import InvalidInput
from sparkdl.io.pickling import ship, unship
from sparkdl.training.loop import Training
from sparkdl.training.objective.objective import Objective

LOCK = threading.Lock()


def locked():
    module = nn.Sequential(nn.Linear(1, 1))
    module[0].lock = LOCK
    return module


def test_function_travels_by_value():
    weight = 3
    assert unship(ship(lambda x: weight * x))(2) == 6


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (locked(), "_modules['0'].lock"),
        (partial(nn.Linear, 1, handle=LOCK), "handle"),
        (partial(nn.Linear, LOCK), "args[0]"),
        (partial(nn.Linear, options={"deep": [LOCK]}), "options['deep'][0]"),
        ((lambda lock: lambda: lock)(LOCK), "lock"),
    ],
    ids=["attribute", "keyword", "argument", "nested", "closure"],
)
def test_value_that_cannot_be_pickled_is_named(model, path):
    with pytest.raises(InvalidInput) as caught:
        ship(Training(Objective(model, nn.MSELoss()), 4))
    assert caught.value.message.startswith(f"objective.model.{path} is of type lock and cannot be sent to the workers")
    assert "cannot pickle '_thread.lock' object" in caught.value.message
    assert "__getstate__" in caught.value.message


def test_missing_module_of_a_worker_is_named(monkeypatch):
    module = ModuleType("only_here")
    exec("def make():\n    return 1", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    packed = cloudpickle.dumps(module.make)
    monkeypatch.delitem(sys.modules, "only_here")
    with pytest.raises(InvalidInput, match=r"the module 'only_here' is on the driver but not on .*--py-files"):
        unship(packed)
