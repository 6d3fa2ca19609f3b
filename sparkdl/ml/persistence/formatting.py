"""The values of Params as one reads them: on one line, by the names in the code, without addresses."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np

_LONGEST = 200  # characters
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def shown(value: object) -> str:
    """A value as text: a string as it is, anything else much as the code that makes it.

    Args:
        value: of a Param.

    Returns:
        One line, cut after 200 characters.
    """
    line = written(value)
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."


def written(value: object, said: Callable[[object], str | None] = lambda value: None) -> str:
    """A value as ``shown``, all of it.

    Args:
        value: of a Param.
        said: the text of what is told in another way, itself or within the value; None of anything else.
    """
    return " ".join((value if isinstance(value, str) and value else _Writer(said).text(value)).split())


class _Writer:
    def __init__(self, said: Callable[[object], str | None]) -> None:
        self._said = said
        self._around: list[int] = []  # the ids of what a value is in, which it may hold again

    def text(self, value: object) -> str:
        if id(value) in self._around:
            return "..."
        self._around.append(id(value))
        try:
            said = self._said(value)
            return self._text(value) if said is None else said
        finally:
            self._around.pop()

    def _text(self, value: object) -> str:
        if isinstance(value, partial):
            return self._call("partial", [value.func, *value.args], value.keywords)
        if inspect.isroutine(value) or isinstance(value, type):
            return _name(value)
        if isinstance(value, (dict, set, frozenset)) or type(value) in (list, tuple):
            return self._container(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._call(_name(type(value)), [], dict(zip(value._fields, value, strict=True)))
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            return f"array({self.text(value.tolist())}, dtype=object)"
        if isinstance(value, SimpleNamespace):
            return self._call(_name(type(value)), [], vars(value))
        if is_dataclass(value):
            names = [part.name for part in fields(value) if part.init and part.repr]
            return self._call(_name(type(value)), [], {n: getattr(value, n) for n in names if hasattr(value, n)})
        if type(value).__repr__ is object.__repr__:
            return f"{_name(type(value))} object"
        return _ADDRESS.sub("", repr(value))

    def _container(self, value: object) -> str:
        if isinstance(value, dict):
            found = "{" + ", ".join(f"{self.text(key)}: {self.text(inner)}" for key, inner in value.items()) + "}"
        elif isinstance(value, list):
            return f"[{', '.join(map(self.text, value))}]"
        elif isinstance(value, tuple):
            return f"({', '.join(map(self.text, value))}{',' * (len(value) == 1)})"
        else:  # sorted, for the order of a set is another in each process
            found = "{" + ", ".join(sorted(map(self.text, value))) + "}" if value else ""  # type: ignore[call-overload]
        plain = type(value) is dict or (type(value) is set and found)
        return found if plain else f"{_name(type(value))}({found})"

    def _call(self, name: str, args: list[object], kwargs: dict[str, object]) -> str:
        given = [*map(self.text, args), *(f"{key}={self.text(inner)}" for key, inner in kwargs.items())]
        return f"{name}({', '.join(given)})"


def _name(value: object) -> str:
    name: str = getattr(value, "__qualname__", type(value).__name__)
    return name.rpartition("<locals>.")[2]


def plain(value: object) -> object:
    """A value as JSON has it; what JSON has not as it is written in code."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else written(value)
