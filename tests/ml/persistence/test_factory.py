"""Model factories by name; unnamed factories, foreign arguments and forged names raise."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl.errors import InvalidInput
from sparkdl.ml.persistence.factory import describe, resolve

HERE = __name__


class Net(nn.Module):
    """Records its arguments."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__()
        self.given, self.named = given, named

    class Inner(nn.Linear):
        pass

    @classmethod
    def made(cls) -> Net:
        return cls("made")

    @staticmethod
    def still() -> Net:
        return Net("still")


def build(width: int = 4) -> nn.Module:
    return nn.Linear(2, width)


NUMBER = 5
NESTED = {"widths": [64, [32]], "options": {"deep": {"er": [None, False]}}}
alias = build
nameless = lambda: Net("nameless")  # noqa: E731


def local() -> nn.Module:
    def inner() -> nn.Module:
        return Net()

    return inner  # type: ignore[return-value]


def circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("factory", "path"),
    [(Net, "Net"), (build, "build"), (alias, "build"), (Net.Inner, "Net.Inner"), (Net.still, "Net.still")],
)
def test_class_or_function_is_its_path(factory: object, path: str) -> None:
    assert describe(factory) == {"path": f"{HERE}:{path}", "args": [], "kwargs": {}}
    assert resolve(describe(factory)) is factory


@pytest.mark.parametrize(
    ("factory", "args", "kwargs"),
    [
        (partial(Net), (), {}),
        (partial(Net, 1, 2.5, "three", None, True), (1, 2.5, "three", None, True), {}),
        (partial(Net, **NESTED), (), NESTED),
        (partial(Net, "é\ud800", **{"": 0}), ("é\ud800",), {"": 0}),
        (partial(Net, (3, (4,)), size=(5, 6)), ([3, [4]],), {"size": [5, 6]}),
        (partial(partial(Net, 1, a=2), 3, a=4), (1, 3), {"a": 4}),
    ],
    ids=["none", "positional", "nested", "unicode", "tuples become lists", "partial of partial"],
)
def test_arguments_survive_json(factory: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    found: Any = resolve(json.loads(json.dumps(describe(factory))))()
    assert (found.given, found.named) == (args, kwargs)


@pytest.mark.parametrize(
    "factory", [local(), nameless, partial(local()), partial(nameless), Net.made], ids=lambda each: type(each).__name__
)
def test_factory_without_importable_name_raises(factory: object) -> None:
    with pytest.raises(InvalidInput, match=r"cannot be imported .*top level"):
        describe(factory)


def test_name_of_main_or_of_other_object_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    factory = build
    with monkeypatch.context() as patch:
        patch.setattr(build, "__module__", "__main__")
        patch.setattr(sys.modules["__main__"], "build", build, raising=False)
        with pytest.raises(InvalidInput, match=r"__main__.build cannot be imported"):
            describe(build)
    monkeypatch.setattr(sys.modules[HERE], "build", Net)
    with pytest.raises(InvalidInput, match="build cannot be imported"):
        describe(factory)
    monkeypatch.setattr(factory, "__module__", "no.such.module")
    with pytest.raises(InvalidInput, match=r"no.such.module.build cannot be imported"):
        describe(factory)


@pytest.mark.parametrize("model", [Net(), nn.Linear(2, 1), 5, "torch.nn.Linear", None, partial(Net())])
def test_instance_raises(model: object) -> None:
    with pytest.raises(InvalidInput, match=r"the model is an instance of \w+, which has no name"):
        describe(model)


@pytest.mark.parametrize(
    "argument",
    [torch.zeros(2), nn.ReLU, nn.ReLU(), object(), {1, 2}, b"bytes", 1j, {1: "a"}, [{"a": {None: 1}}], circle()],
    ids=lambda argument: type(argument).__name__,
)
def test_arguments_outside_json_raise(argument: Any) -> None:
    for factory in (partial(Net, argument), partial(Net, deep=argument), partial(Net, [1, [argument]])):
        with pytest.raises(InvalidInput, match=f"the arguments of the model factory {HERE}.Net are not plain JSON: "):
            describe(factory)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no.such.module:Net", "cannot be imported here: .*No module named 'no'.* spark-submit --py-files"),
        (f"{HERE}:Net.Gone", "cannot be imported here: .*has no attribute 'Gone'"),
        (":Net", "cannot be imported here: .*Empty module name"),
        ("json", "cannot be imported here: .*has no attribute ''"),
        (f"{HERE}:NUMBER", "expected a subclass of"),
        (f"{HERE}:HERE", "expected a subclass of"),
        ("os:system", r"torch\.nn\.Module"),
        ("builtins:eval", r"torch\.nn\.Module"),
    ],
)
def test_missing_or_forged_path_raises(path: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        resolve({"path": path, "args": [], "kwargs": {}})
