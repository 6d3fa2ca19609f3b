"""Formats values of Params as one line, as in the code, without memory addresses."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

_LONGEST = 200  # characters
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def format_value(value: object) -> str:
    """Format a value as ``format_full_value`` does, cut after 200 characters."""
    line = format_full_value(value)
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."


def format_full_value(value: object, override: Callable[[object], str | None] = lambda value: None) -> str:
    """Format a value as the code that makes it, on one line; a string stays as it is.

    ``override`` returns the text of a value with a special format, and None for any other value.
    """
    return " ".join((value if isinstance(value, str) and value else _text(value, override)).split())


def to_json_value(value: object) -> object:
    """Convert a value to JSON types; ``format_full_value`` formats any other type."""
    if isinstance(value, list):
        return list(map(to_json_value, value))
    return value if value is None or isinstance(value, (bool, int, float, str)) else format_full_value(value)


def name_of(value: object) -> str:
    """Return the name of a function or class without the functions around it."""
    name: str = getattr(value, "__qualname__", type(value).__name__)
    return name.rpartition("<locals>.")[2]


def is_opaque(value: object) -> bool:
    """Return whether a value's class has no ``__repr__`` of its own."""
    return type(value).__repr__ is object.__repr__


def _text(value: Any, override: Callable[[object], str | None], around: tuple[int, ...] = ()) -> str:
    text = partial(_text, override=override, around=(*around, id(value)))
    if id(value) in around:
        return "..."
    if (special := override(value)) is not None:
        return special
    if inspect.isroutine(value) or isinstance(value, type):
        return name_of(value)
    if type(value) in (list, tuple):
        items = ", ".join(map(text, value)) + "," * (type(value) is tuple and len(value) == 1)
        return f"[{items}]" if type(value) is list else f"({items})"
    if isinstance(value, (dict, set, frozenset)):
        # The order of a set differs between processes.
        pairs = [f"{text(k)}: {text(v)}" for k, v in value.items()] if isinstance(value, dict) else []
        inner = f"{{{', '.join(pairs or sorted(map(text, value)))}}}" if value or isinstance(value, dict) else ""
        return inner if type(value) is dict or (type(value) is set and inner) else f"{name_of(type(value))}({inner})"
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return f"array({text(value.tolist())}, dtype=object)"
    if (call := _call(value)) is not None:
        return f"{call[0]}({', '.join([*map(text, call[1]), *(f'{k}={text(v)}' for k, v in call[2].items())])})"
    if is_opaque(value):
        return f"{name_of(type(value))} object"
    return _ADDRESS.sub("", repr(value))


def _call(value: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]] | None:
    if isinstance(value, partial):
        return "partial", (value.func, *value.args), value.keywords
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return name_of(type(value)), (), dict(zip(value._fields, value, strict=True))
    if isinstance(value, SimpleNamespace):
        return name_of(type(value)), (), vars(value)
    if is_dataclass(value):
        names = [part.name for part in fields(value) if part.init and part.repr and hasattr(value, part.name)]
        return name_of(type(value)), (), {name: getattr(value, name) for name in names}
    return None
