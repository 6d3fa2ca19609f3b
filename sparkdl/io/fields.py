"""Checked fields: dataclasses whose annotations say which values are valid, and the declarations of numbers.

    @dataclass(frozen=True)
    class TopK(CheckedFields):
        ratio: Share = 0.01

``TopK(nan)``, ``TopK("1 %")`` and ``TopK(True)`` raise InvalidInput: "TopK.ratio is nan; expected a number above 0 and
at most 1." Functions check their arguments by ``checked``, and Params of ``pyspark.ml`` by ``param_types.number``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from inspect import get_annotations, isfunction
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from sparkdl.errors import InvalidInput


@dataclass(frozen=True)
class Rule:
    """The values of a type that are valid, and the text that describes them in errors."""

    text: str
    valid: Callable[[Any], bool] = field(repr=False)


Count = Annotated[int, Rule("a whole number of at least 1", lambda number: number >= 1)]
Natural = Annotated[int, Rule("a whole number of at least 0", lambda number: number >= 0)]
Several = Annotated[int, Rule("a whole number of at least 2", lambda number: number >= 2)]
Seed = Annotated[int, Rule("a whole number of 64 bits", lambda number: -(1 << 63) <= number < 1 << 64)]
Positive = Annotated[float, Rule("a finite number above 0", lambda number: 0 < number < math.inf)]
NonNegative = Annotated[float, Rule("a finite number of at least 0", lambda number: 0 <= number < math.inf)]
Fraction = Annotated[float, Rule("a number above 0 and below 1", lambda number: 0 < number < 1)]
Share = Annotated[float, Rule("a number above 0 and at most 1", lambda number: 0 < number <= 1)]
BelowOne = Annotated[float, Rule("a number from 0 to below 1", lambda number: 0 <= number < 1)]


def within(low: float, high: float) -> Rule:
    """The numbers from ``low`` to ``high``, whole ones if these are."""
    kind = "whole number" if isinstance(low, int) else "number"
    return Rule(f"a {kind} from {low:g} to {high:g}", lambda number: low <= number <= high)


def one_of(choices: Collection[str]) -> Rule:
    """These texts."""
    return Rule(f"one of {', '.join(choices)}", lambda text: text in choices)


@dataclass(frozen=True)
class CheckedFields:
    """A base of dataclasses whose constructor raises InvalidInput unless each field is valid for its annotation."""

    def __post_init__(self) -> None:
        owner: Any = type(self)
        title, label = owner.__name__, getattr(self, "name", None)
        title += f"({label!r})" if isinstance(label, str) else ""
        for name, kind in _annotations(owner).items():
            value = getattr(self, name)
            if (valid := checked(value, kind, f"{title}.{name}")) is not value:
                object.__setattr__(self, name, valid)
        self._check()

    def _check(self) -> None:
        """Check fields that depend on each other."""


@cache
def _annotations(cls: Any) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    for owner in reversed(cls.__mro__):
        hints |= get_annotations(owner, eval_str=True)
    return {declared.name: hints[declared.name] for declared in fields(cls)}


def checked(value: Any, kind: Any, name: str) -> Any:
    """The value as a plain one, if it is valid for an annotation; else raise InvalidInput, which calls it ``name``."""
    converted = plain(value)
    if not fits(converted, kind):
        raise InvalidInput(f"{name} is {f'{value!r}':.200}; expected {_text(kind)}.")
    return converted


def plain(value: Any) -> Any:
    """The value; a number, a boolean or a text of NumPy becomes Python's."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        value = value.item()
    return float(value) if isinstance(value, Real) and not isinstance(value, int | float) else value


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is valid for an annotation, and each item of it if it is a list, a tuple or a dict."""
    origin, options = get_origin(kind) or kind, get_args(kind)
    if origin is Annotated:
        return _is_of(value, options[0]) and kind.__metadata__[0].valid(value)
    if origin in (Union, UnionType):
        return any(fits(value, option) for option in options)
    if origin is Literal:
        return isinstance(value, str) and value in options
    if origin is dict and options and isinstance(value, dict):
        return all(fits(item, options[1]) for item in value.values())
    if origin in (list, tuple) and options and isinstance(value, origin):
        return all(fits(item, options[0]) for item in value)
    return _is_of(value, origin) and (kind is not float or math.isfinite(value))


def _is_of(value: Any, kind: Any) -> bool:
    if kind in (int, float):
        number: Any = Integral if kind is int else Real
        real = isinstance(value, number) and not isinstance(value, bool) and value == value
        return real and not sys.float_info.max < abs(value) < math.inf  # an integer that no float can hold
    if getattr(kind, "_is_protocol", False):
        return not isinstance(value, type) and all(hasattr(value, name) for name in required(kind))
    if kind is Any or (kind is Sequence and isinstance(value, str)):
        return kind is Any
    return isinstance(value, kind)


def required(protocol: Any) -> Collection[str]:
    """The members that a class must have: the abstract ones; of a protocol without abstract members, all methods."""
    methods = [name for name, member in vars(protocol).items() if isfunction(member) and member.__module__ != "typing"]
    return protocol.__abstractmethods__ or methods


_WORDS: dict[Any, str] = {int: "whole number", float: "finite number", str: "text", Callable: "function"}


def _text(kind: Any) -> str:
    origin, options = get_origin(kind) or kind, get_args(kind)
    if origin is Annotated:
        return str(kind.__metadata__[0].text)
    if origin in (Union, UnionType):
        return ", or ".join(map(_text, options))
    if origin is Literal:
        return f"one of {', '.join(options)}"
    if origin in (NoneType, bool):
        return "None" if origin is NoneType else "True or False"
    word = _WORDS.get(origin, origin.__name__)
    item = options[-1 if origin is dict else 0] if origin in (list, tuple, dict) and options else Any
    items = "" if item is Any else f" whose {'values' if origin is dict else 'items'} are each {_text(item)}"
    return f"a{'n' * (word[0] in 'AEIO')} {word}{items}"
