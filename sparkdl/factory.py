"""Model factories by name, so that a saved model needs no pickle."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from sparkdl.errors import InvalidInput


def describe(factory: object) -> dict[str, Any]:
    """A factory as plain JSON: where it is imported from, and its arguments.

    Args:
        factory: a class or function, or a ``functools.partial`` of one with JSON arguments.

    Raises:
        InvalidInput: it cannot be imported by another program, or has other arguments.
    """
    arguments: dict[str, Any] = {"args": [], "kwargs": {}}
    if isinstance(factory, partial):
        arguments = {"args": list(factory.args), "kwargs": dict(factory.keywords)}
        factory = factory.func
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", None)
    if isinstance(factory, nn.Module) or module is None or name is None:
        raise InvalidInput(
            f"the model is an instance of {type(factory).__name__}, and such a model cannot be saved yet; expected a "
            "factory: a class, a function, or a functools.partial of one."
        )
    if module == "__main__" or "<" in name or _find(module, name) is not factory:
        raise InvalidInput(
            f"the model factory {module}.{name} cannot be imported by another program; expected one at the top level "
            "of a module. Move it into a file, and ship that with spark-submit --py-files."
        )
    try:
        return {"path": f"{module}:{name}", **json.loads(json.dumps(arguments))}
    except TypeError as error:
        raise InvalidInput(f"the arguments of the model factory {module}.{name} are not plain JSON: {error}") from error


def resolve(description: dict[str, Any]) -> Callable[[], nn.Module]:
    """The factory that ``describe`` described.

    Raises:
        InvalidInput: it cannot be imported here.
    """
    module, _, name = description["path"].partition(":")
    found = _find(module, name)
    if found is None:
        raise InvalidInput(
            f"the model's factory {module}.{name} cannot be imported here; expected the module on the Python path, "
            "for example by way of spark-submit --py-files."
        )
    if not description["args"] and not description["kwargs"]:
        return found  # type: ignore[no-any-return]
    return partial(found, *description["args"], **description["kwargs"])


def _find(module: str, name: str) -> Any:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found
