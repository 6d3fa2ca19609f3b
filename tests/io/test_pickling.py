"""What cannot be sent to members is named, and so is what they lack."""

from __future__ import annotations

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
from sparkdl.training.objective import Objective


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 1)
        self.inner.lock = threading.Lock()


def made(path: str, **_: object) -> nn.Module:
    return nn.Linear(1, 1)


def refused(work: object) -> str:
    with pytest.raises(InvalidInput) as caught:
        ship(work)
    return str(caught.value)


def test_what_can_be_pickled_comes_back():
    weight = 3
    assert unship(ship(lambda x: weight * x))(2) == 6


def test_the_attribute_of_a_module_is_named():
    message = refused(Training(Objective(Locked(), nn.MSELoss()), 4))
    assert message.startswith("objective.model._modules['inner'].lock is of type lock")
    assert "cannot pickle '_thread.lock' object" in message
    assert "__getstate__" in message


@pytest.mark.parametrize(
    ("factory", "path"),
    [
        (partial(made, "a", handle=threading.Lock()), "objective.model.handle"),
        (partial(made, threading.Lock()), "objective.model.args[0]"),
        (partial(made, "a", options={"deep": [threading.Lock()]}), "objective.model.options['deep'][0]"),
    ],
)
def test_arguments_of_a_factory_are_named(factory, path):
    assert refused(Training(Objective(factory, nn.MSELoss()), 4)).startswith(f"{path} is of type lock")


def test_the_variable_of_a_closure_is_named():
    lock = threading.Lock()

    def factory() -> nn.Module:
        with lock:
            return nn.Linear(1, 1)

    assert refused(Training(Objective(factory, nn.MSELoss()), 4)).startswith("objective.model.lock is of type lock")


def test_a_module_that_members_do_not_have(monkeypatch):
    module = ModuleType("only_here")
    exec("def make():\n    return 1", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    packed = cloudpickle.dumps(module.make)
    monkeypatch.delitem(sys.modules, "only_here")
    with pytest.raises(InvalidInput, match=r"the module 'only_here' is on the driver but not on .*--py-files"):
        unship(packed)
