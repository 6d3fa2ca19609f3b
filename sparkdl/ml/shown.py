"""The values of Params as one reads them: on one line, by the names in the code, without addresses."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, is_dataclass
from functools import partial

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


def written(value: object) -> str:
    """A value as ``shown``, all of it."""
    return " ".join((value if isinstance(value, str) and value else _shown(value)).split())


def _shown(value: object) -> str:
    if isinstance(value, partial):
        return _call("partial", [value.func, *value.args], value.keywords)
    if inspect.isroutine(value) or isinstance(value, type):
        return _name(value)
    if type(value) is list:
        return f"[{', '.join(map(_shown, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(_shown, value))}{',' * (len(value) == 1)})"
    if type(value) is dict:
        return "{" + ", ".join(f"{_shown(key)}: {_shown(inner)}" for key, inner in value.items()) + "}"
    if is_dataclass(value) and not isinstance(value, type):
        given = {part.name: getattr(value, part.name) for part in fields(value) if part.init and part.repr}
        return _call(_name(type(value)), [], given)
    if type(value).__repr__ is object.__repr__:
        return f"{_name(type(value))} object"
    return _ADDRESS.sub("", repr(value))


def _call(name: str, args: list[object], kwargs: dict[str, object]) -> str:
    return f"{name}({', '.join([*map(_shown, args), *(f'{key}={_shown(inner)}' for key, inner in kwargs.items())])})"


def _name(value: object) -> str:
    name: str = getattr(value, "__qualname__", type(value).__name__)
    return name.rpartition("<locals>.")[2]
