"""Values as texts by which they are known: the same in another process, and others for other values.

A value is told as it is written in code (``sparkdl.ml.shown``). Where that text passes something over, beside it are
the first digits of a SHA-256 of the rest:

    array, tensor   dtype, shape and bytes
    module          attributes and state of it and of all within, and the code of their classes
    function        instructions, constants, defaults, the values it has of the scopes around it; of the globals that it
                    names plain ones, and functions and classes of its own module
    class           its functions and plain values, and those of the classes it inherits from
    object          where it shows no values by itself: its attributes, and the code of its class

Docstrings, line numbers and paths do not count. Of libraries that run the training the name suffices: a fit may go on
after they were upgraded. Nothing is pickled: pickles of the same thing may differ between processes.

What has Params is told by these. A uid ends in random digits: ``<class>#<place>`` stands for it, wherever it occurs.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, lru_cache, partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, Protocol, runtime_checkable

import numpy as np
from pyspark.ml import Estimator, PipelineModel
from pyspark.ml.linalg import Matrix
from pyspark.ml.param import Params
from torch import Tensor, nn

from sparkdl.errors import InvalidInput
from sparkdl.ml.shown import written
from sparkdl.state import pack_pieces

_LIBRARIES = {*sys.stdlib_module_names, "numpy", "py4j", "pyspark", "sparkdl", "torch", "torchmetrics"}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), Tensor, np.ndarray)
_OF_CLASSES = ("__doc__", "__firstlineno__")  # what their code says of them
_CACHED = type(lru_cache(len))
_DIGITS = 16
_ARGUMENTS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


@runtime_checkable
class Ensemble(Protocol):
    """What trains members of other estimators."""

    def bases(self) -> list[Estimator[Any]]:
        """The estimators."""


@dataclass(frozen=True)
class Telling:
    """How values are told.

    Attributes:
        places: what stands for uids, see ``places``.
        counts: whether a Param of this name is told of what has it.
    """

    places: Mapping[str, str] = field(default_factory=dict)
    counts: Callable[[Params, str], bool] = lambda params, name: True

    def told(self, value: Any) -> Any:
        """A value as text; of what has Params, as texts by their names."""
        if isinstance(value, Params):
            inner = {"stages": self.told(value.stages)} if isinstance(value, PipelineModel) else {}
            named = sorted(self.values(value).items())
            return {"class": type(value).__name__, **{name: self.told(each) for name, each in named}, **inner}
        if params_in(value):
            return {str(index): self.told(each) for index, each in enumerate(value)}
        rest = hashlib.sha256()
        pieces = 0
        for pieces, piece in enumerate(_Rest(self).of(value), start=1):  # noqa: B007 - how many there were
            rest.update(piece.nbytes.to_bytes(8, "little"))
            rest.update(piece)
        return self.text(value) + (f" {rest.hexdigest()[:_DIGITS]}" if pieces else "")

    def values(self, params: Params) -> dict[str, Any]:
        """The Params that count, by name."""
        return {
            param.name: params.getOrDefault(param)
            for param in params.params
            if params.isDefined(param) and not _by_chance(params, param.name) and self.counts(params, param.name)
        }

    def text(self, value: Any) -> str:
        """A value as it is written, without uids."""
        unordered = isinstance(value, (set, frozenset))
        found = f"{{{', '.join(sorted(map(written, value)))}}}" if unordered else written(value)
        for uid in sorted(self.places, key=len, reverse=True):  # one may be the beginning of another
            found = found.replace(uid, self.places[uid])
        return found


def within(params: Params) -> Iterator[Params]:
    """What has Params, and what it holds that has: values of Params, stages, the bases of ensembles; and theirs."""
    yield params
    values = [params.getOrDefault(param) for param in params.params if params.isDefined(param)]
    values += [params.stages] if isinstance(params, PipelineModel) else []
    values += [params.bases()] if isinstance(params, Ensemble) else []
    for each in (each for value in values for each in params_in(value)):
        yield from within(each)


def places(*given: Params) -> dict[str, str]:
    """What stands for the uids of what has Params and of all within: the class, and the place in this order."""
    found: dict[str, str] = {}
    for params in given:
        for each in within(params):
            found.setdefault(each.uid, f"{type(each).__name__}#{len(found)}")
    return found


def params_in(value: Any) -> list[Params]:
    """What has Params of a value: itself, or what is in a list."""
    several = value if isinstance(value, (list, tuple)) else [value]
    return [each for each in several if isinstance(each, Params)]


def _by_chance(params: Params, name: str) -> bool:
    """Whether it is the seed that pyspark.ml gives what was given none: a hash that is another in each process."""
    return name == "seed" and not params.isSet(name) and params.getOrDefault(name) == hash(type(params).__name__)


class _Rest:
    """What text does not tell of a value, in pieces; of a plain value there are none."""

    def __init__(self, telling: Telling) -> None:
        self._telling = telling
        self._met: dict[int, tuple[int, object]] = {}  # with the objects: the ids of those that are gone are reused

    def of(self, value: Any) -> Iterator[memoryview]:
        """The pieces."""
        if isinstance(value, Params):
            telling = replace(self._telling, places={**places(value), **self._telling.places})
            yield _piece(json.dumps(telling.told(value)))
        elif isinstance(value, (Tensor, np.ndarray, Matrix)):
            yield from _numbers(value)
        elif isinstance(value, (list, tuple)):
            yield from self._inner(dict(enumerate(value)))
        elif isinstance(value, Mapping):
            yield from self._inner(value)
        elif isinstance(value, partial):
            yield from self._inner({"func": value.func, **dict(enumerate(value.args)), **value.keywords})
        elif isinstance(value, MethodType):
            yield from self._whole({"self": value.__self__, "function": value.__func__})
        elif isinstance(value, _CACHED):
            yield from self._inner({"cached": value.__wrapped__})
        elif isinstance(value, (FunctionType, type, nn.Module)) or _has_attributes(value):
            yield from self._once(value)

    def _once(self, value: Any) -> Iterator[memoryview]:
        """Of what may hold itself; when it is met again, when that was."""
        if isinstance(value, type) and _of_library(value):
            return
        if id(value) in self._met:
            yield _piece(f"met {self._met[id(value)][0]}")
            return
        self._met[id(value)] = len(self._met), value
        if isinstance(value, FunctionType):
            yield from self._function(value)
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, nn.Module):
            yield from self._module(value)
        else:
            yield from self._object(value)

    def _inner(self, values: Mapping[Any, Any]) -> Iterator[memoryview]:
        """Of what is in a value whose text has theirs."""
        for name, value in values.items():
            pieces = list(self.of(value))
            if pieces:
                yield _piece(f"{name}")
            yield from pieces

    def _whole(self, values: Mapping[Any, Any]) -> Iterator[memoryview]:
        """Of what is in a value whose text has nothing of theirs: their texts as well."""
        for name, value in values.items():
            text = "" if params_in(value) else self._telling.text(value)
            yield _piece(f"{name}={type(value).__name__} {text}")
            yield from self.of(value)

    def _function(self, function: FunctionType) -> Iterator[memoryview]:
        if not _of_library(function):
            yield _piece(_code(function.__code__))
            yield from self._whole(dict(enumerate(function.__defaults__ or ())))
            yield from self._whole(function.__kwdefaults__ or {})
            found = function.__globals__
            named = {name: found[name] for name in sorted(_globals(function.__code__)) if name in found}
            yield from self._whole({n: v for n, v in named.items() if _plain(v) or _beside(v, function)})
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        yield from self._whole({name: _content(cell) for name, cell in cells})

    def _class(self, value: type) -> Iterator[memoryview]:
        for each in value.__mro__:
            for name, member in sorted(vars(each).items()) if not _of_library(each) else ():
                if isinstance(member, property):
                    yield from self._inner({f"{name} {end}": getattr(member, end) for end in ("fget", "fset", "fdel")})
                elif isinstance(member, (staticmethod, classmethod, cached_property, FunctionType, partial)):
                    plain = member.func if isinstance(member, cached_property) else member
                    yield from self._inner({name: getattr(plain, "__func__", plain)})
                elif _plain(member) and not name.startswith("__"):
                    yield from self._whole({name: member})

    def _module(self, module: nn.Module) -> Iterator[memoryview]:
        for name, each in module.named_modules():
            yield from self._inner({f"class of {name}": type(each)})
            public = {of: value for of, value in vars(each).items() if not of.startswith("_") and of != "training"}
            yield from self._whole({f"{name}.{of}": value for of, value in sorted(public.items())})
        yield from self._whole(module.state_dict())

    def _object(self, value: Any) -> Iterator[memoryview]:
        yield from self._inner({"class": type(value)})
        if is_dataclass(value):
            parts = {part.name: (part, getattr(value, part.name)) for part in fields(value)}
            yield from self._inner({name: inner for name, (part, inner) in parts.items() if part.init and part.repr})
            yield from self._whole({n: inner for n, (part, inner) in parts.items() if not (part.init and part.repr)})
        else:
            yield from self._whole(dict(sorted(vars(value).items())))


def _piece(text: str) -> memoryview:
    return memoryview(text.encode())


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # its variable has no value yet
        return None


def _numbers(value: Tensor | np.ndarray[Any, Any] | Matrix) -> Iterator[memoryview]:
    plain: Any = value.toArray() if isinstance(value, Matrix) else value
    try:
        yield from pack_pieces(plain.detach().as_subclass(Tensor) if isinstance(plain, Tensor) else plain)
    except (InvalidInput, RuntimeError, ValueError):  # of objects, or without values yet
        yield _piece(written(plain.tolist() if isinstance(plain, np.ndarray) else plain))


def _has_attributes(value: object) -> bool:
    """Whether a value is an object whose text does not tell all: a data class, or one that shows nothing."""
    if is_dataclass(value):
        return True
    silent = type(value).__repr__ is object.__repr__ or callable(value)
    return silent and hasattr(value, "__dict__") and not _of_library(type(value))


def _of_library(value: object) -> bool:
    return str(getattr(value, "__module__", None) or "builtins").partition(".")[0] in _LIBRARIES


def _plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_plain, value))
    return all(map(_plain, value.values())) if isinstance(value, dict) else isinstance(value, _PLAIN)


def _beside(value: object, function: FunctionType) -> bool:
    return isinstance(value, (FunctionType, type)) and value.__module__ == function.__module__


def _globals(code: CodeType) -> set[str]:
    """The names of the globals that code reads, that within it too."""
    own = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return own.union(*(_globals(each) for each in code.co_consts if isinstance(each, CodeType)))


def _code(code: CodeType) -> str:
    """What code does, with its constants in their places: a docstring is one too, and moves the numbers of others."""
    found = list(dis.get_instructions(code))
    said = {number for number, each in enumerate(found) if each.opname == "STORE_NAME" and each.argval in _OF_CLASSES}
    found = [each for number, each in enumerate(found) if number not in said and number + 1 not in said]
    numbers = {each.offset: number for number, each in enumerate(found)}
    jumps = {*dis.hasjrel, *dis.hasjabs}
    steps = [
        f"{each.opname} {numbers.get(each.argval) if each.opcode in jumps else _constant(each.argval)}"
        for each in found
    ]
    count = code.co_argcount + code.co_kwonlyargcount
    head = (code.co_varnames[:count], code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _ARGUMENTS)
    return "\n".join([repr(head), *steps, getattr(code, "co_exceptiontable", b"").hex()])


def _constant(value: object) -> str:
    if isinstance(value, CodeType):
        return f"({_code(value)})"
    if isinstance(value, frozenset):
        return f"frozenset({sorted(map(_constant, value))})"
    return f"({', '.join(map(_constant, value))},)" if isinstance(value, tuple) else repr(value)
