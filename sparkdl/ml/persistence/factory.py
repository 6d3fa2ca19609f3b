"""Saves model factories by name, without pickles."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FunctionType
from typing import Any

from torch import nn

from sparkdl.errors import InvalidInput

_FOREIGN = sys.stdlib_module_names | {
    *("cloudpickle", "jsonargparse", "numpy", "pandas", "pip", "py4j", "pyarrow", "pyspark", "safetensors"),
    *("setuptools", "torch", "torchmetrics", "tqdm", "yaml"),
}
"""Packages installed with sparkdl, some of whose functions run code or unpickle their arguments."""


def describe(factory: object) -> dict[str, Any]:
    """Describe a factory as JSON: its import path and its arguments; tuples become lists.

    Args:
        factory: a class or function, or a ``functools.partial`` of one with JSON arguments.

    Raises:
        InvalidInput: another program cannot import it, or its arguments are no JSON.
    """
    arguments: dict[str, Any] = {"args": [], "kwargs": {}}
    if isinstance(factory, partial):
        arguments = {"args": list(factory.args), "kwargs": dict(factory.keywords)}
        factory = factory.func
    module, name = (getattr(factory, attribute, None) for attribute in ("__module__", "__qualname__"))
    if isinstance(factory, nn.Module) or module is None or name is None:
        raise InvalidInput(
            f"the model is an instance of {type(factory).__name__}, which has no name; expected a factory: a class, a "
            "function, or a functools.partial of one."
        )
    try:
        path = path_of(factory)
    except ImportError as error:
        raise InvalidInput(
            f"the model factory {error}; expected one at the top level of a module. Move it into a file, and ship that "
            "with spark-submit --py-files."
        ) from error
    if not callable_by_name(factory, (nn.Module,)):
        raise InvalidInput(
            f"the model factory {module}.{name} cannot be saved by name; expected a subclass of torch.nn.Module or a "
            "function."
        )
    try:
        _check_keys(arguments)
        return {"path": path, **json.loads(json.dumps(arguments))}
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the arguments of the model factory {module}.{name} are not plain JSON: {error}") from error


def resolve(description: dict[str, Any]) -> Callable[[], nn.Module]:
    """Import the factory of a description.

    Raises:
        InvalidInput: it cannot be imported here.
    """
    found = imported("the model's factory", description["path"])
    if not callable_by_name(found, (nn.Module,)):
        raise InvalidInput(
            f"the model's factory {description['path']} is {found!r}; expected a subclass of torch.nn.Module, or a "
            "function of a module that is neither Python's own nor torch's."
        )
    if not description["args"] and not description["kwargs"]:
        return found  # type: ignore[no-any-return]
    return partial(found, *description["args"], **description["kwargs"])


def callable_by_name(found: object, classes: tuple[type, ...]) -> bool:
    """Whether a saved name may refer to an object: loading calls it, so a forged name must not reach os.system.

    Allowed are subclasses of ``classes``, and functions of modules that are not installed with sparkdl.
    """
    if isinstance(found, type):
        return issubclass(found, classes)
    if not isinstance(found, FunctionType):
        return False
    return found.__module__ == "torch.nn.functional" or found.__module__.partition(".")[0] not in _FOREIGN


def _check_keys(value: object) -> None:
    """Raise for keys that are no strings: JSON would turn them into strings, which makes another model."""
    if isinstance(value, dict):
        other = [key for key in value if not isinstance(key, str)]
        if other:
            raise TypeError(f"a dictionary has the keys {other}, which are no strings")
        value = list(value.values())
    for inner in value if isinstance(value, (list, tuple)) else ():
        _check_keys(inner)


def path_of(value: Any) -> str:
    """Return ``<module>:<name>`` of a class or function.

    Raises:
        ImportError: another program cannot import it by this name.
    """
    module, name = value.__module__, value.__qualname__
    with suppress(ImportError, AttributeError):  # the latter for ``<lambda>`` and ``<locals>``
        if module != "__main__" and find(module, name) is value:
            return f"{module}:{name}"
    raise ImportError(f"{module}.{name} cannot be imported by another program")


def imported(what: str, path: str) -> Any:
    """Import ``<module>:<name>``; ``what`` begins the error.

    Raises:
        InvalidInput: it cannot be imported here.
    """
    module, _, name = path.partition(":")
    try:
        return find(module, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput(
            f"{what} {module}.{name} cannot be imported here: {error}. Put its module, and the modules that it "
            "imports, on the Python path, for example with spark-submit --py-files."
        ) from error


def find(module: str, name: str) -> Any:
    """Import a dotted name of a module."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
