"""Saves values of Params that are no JSON, such as model factories, by import paths and arguments."""

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
from sparkdl.serving.format.factory import NO_TRUST, Trust, is_frozen, path_of

_LARGEST = 4096  # the largest size of a tensor that is saved as JSON, such as class weights


class NotDescribable(Exception):
    """A value that no name and arguments make again."""


@dataclass(frozen=True)
class AllowedTypes:
    """The types that a Param may hold besides JSON, frozen dataclasses and the user's functions.

    Subclasses of ``classes`` may be named. With ``instances``, the constructor's arguments make instances again.
    """

    classes: tuple[type, ...] = ()
    instances: bool = False

    def describe(self, value: object) -> dict[str, Any]:
        """Describe a value as JSON, from which ``resolve`` makes it again; else raises ``NotDescribable``."""
        try:
            description = self._describe(value)
            again = self.resolve(json.loads(json.dumps(description)), Trust(pickles=True))
        except Exception as error:  # a constructor may raise anything; then the value is pickled
            raise NotDescribable(str(error)) from error
        if not same(value, again):
            raise NotDescribable(f"{description} makes something else")
        return description

    def _describe(self, value: Any) -> dict[str, Any]:
        if is_plain(value):
            return {"value": value}
        if type(value) in (list, tuple):
            return {type(value).__name__: list(map(self._describe, value))}
        if isinstance(value, dict) and all(type(key) is str for key in value):
            return {"dict": self._described(value)}
        if type(value) is Tensor and value.numel() <= _LARGEST and not value.requires_grad:
            return {"tensor": value.tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
        if isinstance(value, partial):
            args = list(map(self._describe, value.args))
            return {"partial": path_of(value.func), "args": args, "kwargs": self._described(value.keywords)}
        if isinstance(value, (type, FunctionType)):
            return {"name": path_of(value)}
        if is_frozen(type(value)):
            kwargs = {part.name: getattr(value, part.name) for part in fields(value) if part.init}
        elif self.instances and isinstance(value, self.classes):
            kwargs = _constructed_with(value)
        else:
            raise NotDescribable(f"an instance of {type(value).__name__}")
        return {"make": path_of(type(value)), "kwargs": self._described(kwargs)}

    def _described(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._describe(value) for name, value in values.items()}

    def resolve(self, description: Any, trust: Trust = NO_TRUST) -> Any:
        """Make the value of a description again; raises ``InvalidInput`` if it is damaged or not trusted."""
        again = partial(self.resolve, trust=trust)
        match description:
            case {"value": value}:
                return value
            case {"list": list(items)}:
                return list(map(again, items))
            case {"tuple": list(items)}:
                return tuple(map(again, items))
            case {"dict": dict(items)}:
                return {name: again(item) for name, item in items.items()}
            case {"tensor": numbers, "dtype": str(name)} if isinstance(getattr(torch, name, None), torch.dtype):
                return torch.tensor(numbers, dtype=getattr(torch, name))
            case {"name": str(name)}:
                return trust.imported(name, self.classes)
            case {"partial": str(name), "args": list(args), "kwargs": dict(kwargs)}:
                return partial(trust.imported(name, self.classes), *map(again, args), **again({"dict": kwargs}))
            case {"make": str(name), "kwargs": dict(kwargs)}:
                kind = trust.imported(name, self.classes)
                if not isinstance(kind, type) or not (self.instances or is_frozen(kind)):
                    raise InvalidInput(
                        f"a saved value is an instance of {name}; expected a frozen dataclass, or a type of the Param."
                    )
                return kind(**again({"dict": kwargs}))
        raise InvalidInput(f"a saved value is damaged: {str(description)[:100]!r}.")


_ALLOWED: dict[str, AllowedTypes] = {
    "model": AllowedTypes((nn.Module,)),
    "loss": AllowedTypes((nn.Module,), instances=True),
    "optimizer": AllowedTypes((torch.optim.Optimizer,)),
    "scheduler": AllowedTypes((LRScheduler,)),
    "strategy": AllowedTypes((torch.optim.Optimizer,)),  # ParameterServer has an optimizer
}


def allowed_types(param: str) -> AllowedTypes:
    """The types that the Param ``param`` may hold."""
    if param == "metrics":
        from torchmetrics import Metric  # the import takes half as long as torch's, and most models have no metrics

        return AllowedTypes((Metric,), instances=True)
    return _ALLOWED.get(param, AllowedTypes())


def is_plain(value: object) -> bool:
    """Whether JSON reproduces the value exactly."""
    if isinstance(value, dict):
        return all(type(key) is str and is_plain(inner) for key, inner in value.items())
    if isinstance(value, list):
        return all(map(is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal; values without equality are compared by their parts."""
    if type(left) is not type(right):
        return False
    if isinstance(left, Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    torchmetrics = sys.modules.get("torchmetrics")  # a metric exists only if it is imported
    if torchmetrics is not None and isinstance(left, torchmetrics.Metric):
        return same(left.__getstate__(), right.__getstate__())
    if isinstance(left, nn.Module):
        return same(vars(left), vars(right))
    if isinstance(left, partial):
        return same((left.func, left.args, left.keywords), (right.func, right.args, right.keywords))
    if isinstance(left, Mapping):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if is_dataclass(left) and not isinstance(left, type):
        return all(same(getattr(left, part.name), getattr(right, part.name)) for part in fields(left))
    return bool(left is right or left == right)


def _constructed_with(value: Any) -> dict[str, Any]:
    parameters = inspect.signature(type(value)).parameters.values()
    named = [part for part in parameters if part.kind in (part.POSITIONAL_OR_KEYWORD, part.KEYWORD_ONLY)]
    values = {part.name: getattr(value, part.name, part.default) for part in named}
    return {part.name: values[part.name] for part in named if values[part.name] is not part.default}
