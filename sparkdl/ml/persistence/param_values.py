"""Saves values of Params that are no JSON by a name and arguments that make them again."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from sparkdl.errors import InvalidInput
from sparkdl.ml.persistence import factory

_LARGEST = 4096  # the largest size of a tensor that is saved as JSON, such as class weights


class NotDescribable(Exception):
    """A value that no name and arguments make again."""


@dataclass(frozen=True)
class AllowedTypes:
    """The types that a Param may hold besides JSON, frozen dataclasses and the user's functions.

    Attributes:
        classes: their subclasses may be named.
        instances: whether the Param may hold instances of them, made again from the constructor's arguments.
    """

    classes: tuple[type, ...] = ()
    instances: bool = False


_KINDS: dict[str, AllowedTypes] = {
    "model": AllowedTypes((nn.Module,)),
    "loss": AllowedTypes((nn.Module,), instances=True),
    "optimizer": AllowedTypes((torch.optim.Optimizer,)),
    "scheduler": AllowedTypes((LRScheduler,)),
}


def kinds_of(param: str) -> AllowedTypes:
    """The types that the Param ``param`` may hold."""
    if param == "metrics":
        from torchmetrics import Metric  # the import takes half as long as torch's, and most models have no metrics

        return AllowedTypes((Metric,), instances=True)
    return _KINDS.get(param, AllowedTypes())


def is_plain(value: object) -> bool:
    """Whether JSON reproduces the value exactly."""
    if isinstance(value, dict):
        return all(type(key) is str and is_plain(inner) for key, inner in value.items())
    if isinstance(value, list):
        return all(is_plain(inner) for inner in value)
    return value is None or type(value) in (bool, int, float, str)


def describe(value: object, kinds: AllowedTypes) -> dict[str, Any]:
    """Describe a value as JSON of names and arguments, and check that ``resolve`` makes it again.

    Raises:
        NotDescribable: it does not.
    """
    description = _describe(value, kinds)
    try:
        again = resolve(json.loads(json.dumps(description)), kinds)
    except Exception as error:  # a constructor may raise anything; then the value is pickled
        raise NotDescribable(str(error)) from error
    if not same(value, again):
        raise NotDescribable(f"{description} makes something else")
    return description


def resolve(description: Any, kinds: AllowedTypes) -> Any:
    """Make the value of a description again.

    Raises:
        InvalidInput: a name cannot be imported or may not be called, or the description is damaged.
    """
    match description:
        case {"value": value}:
            return value
        case {"list": list(items)}:
            return [resolve(item, kinds) for item in items]
        case {"tuple": list(items)}:
            return tuple(resolve(item, kinds) for item in items)
        case {"dict": dict(items)}:
            return {name: resolve(item, kinds) for name, item in items.items()}
        case {"tensor": numbers, "dtype": str(name)} if isinstance(getattr(torch, name, None), torch.dtype):
            return torch.tensor(numbers, dtype=getattr(torch, name))
        case {"name": str(name)}:
            return _named(name, kinds)
        case {"partial": str(name), "args": list(args), "kwargs": dict(kwargs)}:
            positional = [resolve(argument, kinds) for argument in args]
            return partial(_named(name, kinds), *positional, **{k: resolve(v, kinds) for k, v in kwargs.items()})
        case {"make": str(name), "kwargs": dict(kwargs)}:
            kind = _named(name, kinds)
            if not isinstance(kind, type) or not (kinds.instances or _is_frozen(kind)):
                raise InvalidInput(
                    f"a saved Param is an instance of {name}; expected a frozen dataclass, or a type of the Param."
                )
            return kind(**{k: resolve(v, kinds) for k, v in kwargs.items()})
    raise InvalidInput(f"a saved Param is damaged: {str(description)[:100]!r}.")


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal; values without equality are compared by their parts."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if _is_metric(one):
        return same(one.__getstate__(), other.__getstate__())
    if isinstance(one, nn.Module):
        return same(vars(one), vars(other))
    if isinstance(one, partial):
        return same((one.func, one.args, one.keywords), (other.func, other.args, other.keywords))
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if is_dataclass(one) and not isinstance(one, type):
        return all(same(getattr(one, part.name), getattr(other, part.name)) for part in fields(one))
    return bool(one is other or one == other)


def _is_metric(value: object) -> bool:
    torchmetrics = sys.modules.get("torchmetrics")  # a metric exists only if it is imported
    return torchmetrics is not None and isinstance(value, torchmetrics.Metric)


def _describe(value: Any, kinds: AllowedTypes) -> dict[str, Any]:
    if is_plain(value):
        return {"value": value}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_describe(item, kinds) for item in value]}
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {"dict": {key: _describe(item, kinds) for key, item in value.items()}}
    if type(value) is Tensor and value.numel() <= _LARGEST and not value.requires_grad:
        return {"tensor": value.tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, partial):
        kwargs = {name: _describe(item, kinds) for name, item in value.keywords.items()}
        return {"partial": _name(value.func), "args": [_describe(item, kinds) for item in value.args], "kwargs": kwargs}
    if isinstance(value, (type, FunctionType)):
        return {"name": _name(value)}
    if _is_frozen(type(value)):
        given = {part.name: getattr(value, part.name) for part in fields(value) if part.init}
    elif kinds.instances and isinstance(value, kinds.classes):
        given = _constructed_with(value)
    else:
        raise NotDescribable(f"an instance of {type(value).__name__}")
    return {"make": _name(type(value)), "kwargs": {name: _describe(item, kinds) for name, item in given.items()}}


def _constructed_with(value: Any) -> dict[str, Any]:
    """The constructor's arguments that differ from their defaults, from attributes of the same names."""
    parameters = inspect.signature(type(value)).parameters.values()
    named = [part for part in parameters if part.kind in (part.POSITIONAL_OR_KEYWORD, part.KEYWORD_ONLY)]
    found = {part.name: getattr(value, part.name, part.default) for part in named}
    return {part.name: found[part.name] for part in named if found[part.name] is not part.default}


def _name(value: Any) -> str:
    try:
        return factory.path_of(value)
    except (ImportError, AttributeError) as error:
        raise NotDescribable(str(error)) from error


def _named(path: str, kinds: AllowedTypes) -> Any:
    module, _, name = path.partition(":")
    if module.partition(".")[0] in sys.stdlib_module_names or any(part.startswith("__") for part in name.split(".")):
        raise InvalidInput(f"a saved Param names {module}.{name}; expected nothing of Python's own modules.")
    found = factory.imported("a saved Param names", path)
    if not (factory.callable_by_name(found, kinds.classes) or _is_frozen(found)):
        raise InvalidInput(
            f"a saved Param names {module}.{name}, which is {found!r}; expected a function of a module that is "
            "neither Python's own nor torch's, a frozen dataclass"
            f"{''.join(f', or a subclass of {kind.__name__}' for kind in kinds.classes)}."
        )
    return found


def _is_frozen(found: object) -> bool:
    """Whether it is a frozen dataclass outside the standard library."""
    if not isinstance(found, type) or not is_dataclass(found):
        return False
    settings: Any = vars(found).get("__dataclass_params__")
    return bool(settings and settings.frozen) and found.__module__.partition(".")[0] not in sys.stdlib_module_names
