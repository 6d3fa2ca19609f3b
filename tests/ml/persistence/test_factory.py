"""A factory by name, and everything that has no name by which another program could find it."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl.errors import InvalidInput
from sparkdl.ml.persistence.factory import describe, resolve

HERE = __name__


class Net(nn.Module):
    """Remembers what it was made of."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__()
        self.given, self.named = given, named
        self.layer = nn.Linear(2, 1)

    class Inner(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 1)

    @classmethod
    def made(cls) -> Net:
        return cls("made")

    @staticmethod
    def still() -> Net:
        return Net("still")


def build(width: int = 4) -> nn.Module:
    return nn.Linear(2, width)


class Callable:
    def __call__(self) -> nn.Module:
        return Net()


NUMBER = 5
replaced = build  # another name of the same function
nameless = lambda: Net("nameless")  # noqa: E731


def travelled(factory: object) -> Any:
    """What another program makes of the factory's description."""
    return resolve(json.loads(json.dumps(describe(factory))))()


# ---- what has a name -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factory", "path"),
    [
        (Net, f"{HERE}:Net"),
        (build, f"{HERE}:build"),
        (replaced, f"{HERE}:build"),
        (Net.Inner, f"{HERE}:Net.Inner"),
        (Net.still, f"{HERE}:Net.still"),
    ],
)
def test_a_class_or_function_is_its_path(factory: object, path: str) -> None:
    assert describe(factory) == {"path": path, "args": [], "kwargs": {}}
    assert resolve(describe(factory)) is factory


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((1, 2.5, "three", None, True), {}),
        ((), {"widths": [64, [32]], "options": {"deep": {"er": [None, False]}}}),
        (("é\ud800",), {"": 0}),
    ],
)
def test_arguments_come_back(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    found = travelled(partial(Net, *args, **kwargs))
    assert found.given == args
    assert found.named == kwargs


def test_tuples_come_back_as_lists() -> None:
    assert travelled(partial(Net, (3, (4,)), size=(5, 6))).given == ([3, [4]],)


def test_a_partial_of_a_partial() -> None:
    found = travelled(partial(partial(Net, 1, a=2), 3, a=4))
    assert (found.given, found.named) == ((1, 3), {"a": 4})


def test_classes_of_others() -> None:
    module = travelled(partial(torch.nn.Linear, 3, out_features=2))
    assert type(module) is nn.Linear
    assert module.weight.shape == (2, 3)


def test_another_program_finds_it(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text("from torch import nn\ndef net(width): return nn.Linear(2, width)\n")
    script = (
        "import json, sys; from sparkdl.ml.persistence.factory import resolve; "
        "print(resolve(json.loads(sys.argv[1]))().weight.shape[0])"
    )
    given = json.dumps({"path": "elsewhere:net", "args": [], "kwargs": {"width": 7}})
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {script}", given]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "7\n"


# ---- what has none ---------------------------------------------------------------------------------------------------


def test_what_is_local_or_nameless_is_refused() -> None:
    class Local(nn.Module):
        pass

    def local() -> nn.Module:
        return Net()

    for factory in (Local, local, nameless, partial(Local), partial(local), partial(nameless), Net.made):
        with pytest.raises(InvalidInput, match="cannot be imported by another program; expected one at the top level"):
            describe(factory)


def test_main_is_another_module_in_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "build", build, raising=False)
    with pytest.raises(InvalidInput, match=r"the model factory __main__.build cannot be imported by another program"):
        describe(build)


def test_a_name_that_leads_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    factory = build
    monkeypatch.setattr(sys.modules[HERE], "build", Net)
    with pytest.raises(InvalidInput, match="cannot be imported by another program"):
        describe(factory)
    monkeypatch.setattr(factory, "__module__", "no.such.module")
    with pytest.raises(InvalidInput, match=r"no.such.module.build cannot be imported by another program"):
        describe(factory)


@pytest.mark.parametrize("model", [Net(), nn.Linear(2, 1), Callable(), 5, "torch.nn.Linear", None, partial(Callable())])
def test_an_instance_is_refused(model: object) -> None:
    with pytest.raises(InvalidInput, match=r"the model is an instance of \w+, which has no name"):
        describe(model)


def circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    "argument",
    [torch.zeros(2), nn.ReLU, nn.ReLU(), object(), {1, 2}, b"bytes", 1j, {1: "a"}, [{"a": {None: 1}}], circle()],
    ids=lambda argument: type(argument).__name__,
)
def test_other_arguments_are_refused(argument: Any) -> None:
    for factory in (partial(Net, argument), partial(Net, deep=argument), partial(Net, [1, [argument]])):
        with pytest.raises(InvalidInput, match=f"the arguments of the model factory {HERE}.Net are not plain JSON: "):
            describe(factory)


# ---- descriptions from elsewhere -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("no.such.module:Net", "No module named 'no'"),
        (f"{HERE}:Gone", "has no attribute 'Gone'"),
        (f"{HERE}:Net.Gone", "has no attribute 'Gone'"),
        (":Net", "Empty module name"),
        ("json", "has no attribute ''"),
    ],
)
def test_what_is_not_here_is_refused_and_says_why(path: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=f"cannot be imported here: .*{why}.* spark-submit --py-files"):
        resolve({"path": path, "args": [], "kwargs": {}})


@pytest.mark.parametrize("path", [f"{HERE}:NUMBER", f"{HERE}:HERE"])
def test_what_makes_nothing_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput, match="expected a subclass of"):
        resolve({"path": path, "args": [], "kwargs": {}})
