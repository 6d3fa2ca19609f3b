"""Values as texts by which they are known: the same in another process, and others for other values.

A value is told as it is written in code (``sparkdl.ml.persistence.formatting``). Where that text passes something
over, beside it are the first digits of a SHA-256 of the rest:

    array, tensor   dtype, shape and bytes
    module          attributes and state of it and of all within, and the code of their classes
    function        instructions, constants, defaults, the values it has of the scopes around it; of the globals that it
                    names values, objects of the program's own classes, functions and classes of its own module, and
                    the names of other functions and classes
    class           its functions and plain values, and those of the classes it inherits from
    object          where it shows no values by itself, or is called: its attributes, and the code of its class

Docstrings, line numbers and paths do not count. Of libraries that run the training the name suffices: a fit may go on
after they were upgraded. Nothing is pickled: pickles of the same thing may differ between processes.

What use changes is told as it is: a number of a class that code counts up, or a memo that a function keeps in its
scope, makes the same fit another. Only what is cached does not count: ``cached_property``, ``lru_cache``, and fields of
data classes that are neither given nor shown.

What has Params is told by these. A uid ends in random digits: ``<class>#<place>`` stands for it, wherever it occurs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import cached_property, lru_cache, partial
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, Protocol, runtime_checkable

import numpy as np
from pyspark.ml import Estimator, PipelineModel
from pyspark.ml.linalg import Matrix
from pyspark.ml.param import Param, Params
from torch import Tensor, dtype, nn

from sparkdl.ensembles.sources import attributes, content, globals_of, module_of, of_library, of_program, steps
from sparkdl.errors import InvalidInput
from sparkdl.io.serialization import pack_pieces
from sparkdl.ml.persistence.formatting import written

_PLAIN = (bool, int, float, complex, str, bytes, range, type(None), Enum, dtype, Tensor, np.ndarray, np.generic)
_CACHED = type(lru_cache(len))
_CODE = (FunctionType, BuiltinFunctionType, _CACHED, type)
_OF_MODULES = {*vars(nn.Module())}
_Met = dict[int, tuple[int, object]]  # with the objects: the ids of those that are gone are reused
_DIGITS = 16


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

    def told(self, value: Any, met: _Met | None = None) -> Any:
        """A value as text; of what has Params, as texts by their names; not of what was met before."""
        met = met or {}
        if params_in(value):
            if id(value) in met:
                return self.text(value)
            met = {**met, id(value): (len(met), value)}
        if isinstance(value, Params):
            inner = {"stages": self.told(value.stages, met)} if isinstance(value, PipelineModel) else {}
            named = sorted(self.values(value).items())
            return {"class": type(value).__name__, **{name: self.told(each, met) for name, each in named}, **inner}
        if params_in(value):
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            return {self.text(key): self.told(each, met) for key, each in items}
        rest = hashlib.sha256()
        pieces = 0
        for pieces, piece in enumerate(_Rest(self, met).of(value), start=1):  # noqa: B007 - how many there were
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
        return self.placed(written(value, self._said))

    def placed(self, text: str) -> str:
        """A text without uids."""
        for uid in sorted(self.places, key=len, reverse=True):  # one may be the beginning of another
            text = text.replace(uid, self.places[uid])
        return text

    def _said(self, value: object) -> str | None:
        if isinstance(value, Params):
            return self.places.get(value.uid, type(value).__name__)
        if isinstance(value, Param):
            return f"{self.places.get(value.parent, value.parent.rpartition('_')[0])}.{value.name}"
        return None


def within(params: Params, *around: Params) -> Iterator[Params]:
    """What has Params, and what it holds that has: values of Params, stages, the bases of ensembles; and theirs."""
    if any(params is each for each in around):
        return
    yield params
    values = [params.getOrDefault(param) for param in params.params if params.isDefined(param)]
    values += [params.stages] if isinstance(params, PipelineModel) else []
    values += [params.bases()] if isinstance(params, Ensemble) else []
    for each in params_in(values):
        yield from within(each, params, *around)


def places(*given: Params) -> dict[str, str]:
    """What stands for the uids of what has Params and of all within: the class, and the place in this order."""
    found: dict[str, str] = {}
    for params in given:
        for each in within(params):
            found.setdefault(each.uid, f"{type(each).__name__}#{len(found)}")
    return found


def params_in(value: Any, *around: Any) -> list[Params]:
    """What has Params of a value: itself, or what is in lists and maps."""
    if isinstance(value, Params):
        return [value]
    if not isinstance(value, (list, tuple, Mapping)) or any(value is each for each in around):
        return []
    inner = value.values() if isinstance(value, Mapping) else value
    return [found for each in inner for found in params_in(each, value, *around)]


def _by_chance(params: Params, name: str) -> bool:
    """Whether it is the seed that pyspark.ml gives what was given none: a hash that is another in each process."""
    return name == "seed" and not params.isSet(name) and params.getOrDefault(name) == hash(type(params).__name__)


class _Rest:
    """What text does not tell of a value, in pieces; of a plain value there are none."""

    def __init__(self, telling: Telling, met: _Met, around: set[int] | None = None) -> None:
        self._telling = telling
        self._met = dict(met)
        self._around = set(around or ())  # the ids of what a value is in

    def of(self, value: Any) -> Iterator[memoryview]:
        """The pieces."""
        if isinstance(value, Params):
            telling = replace(self._telling, places={**places(value), **self._telling.places})
            yield _piece(json.dumps(telling.told(value, self._met)))
        elif isinstance(value, str):
            yield from () if value == " ".join(value.split()) else [_piece(self._telling.placed(value))]
        elif isinstance(value, np.ndarray) and value.dtype.hasobject:
            yield from self._whole({value.shape: value.tolist()})
        elif isinstance(value, (Tensor, np.ndarray, Matrix)):
            yield from _numbers(value)
        elif isinstance(value, (set, frozenset)):  # each as if it were the first: their order is by chance
            yield from sorted(map(self._apart, value), key=bytes)
        elif isinstance(value, (MethodType, BuiltinFunctionType)):
            yield from self._method(value)
        elif (parts := _parts(value)) is not None:
            if id(value) not in self._around:
                self._around.add(id(value))
                yield from self._inner(parts)
                self._around.remove(id(value))
        elif isinstance(value, (FunctionType, type, nn.Module)) or _has_attributes(value):
            yield from self._once(value)

    def _apart(self, value: Any) -> memoryview:
        rest = _Rest(self._telling, self._met, self._around)
        return _piece(hashlib.sha256(b"\0".join(rest._whole({"": value}))).hexdigest())

    def _once(self, value: Any) -> Iterator[memoryview]:
        """Of what may hold itself; when it is met again, when that was."""
        if isinstance(value, type) and of_library(value):
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
            pieces = [*self.of(name), *self.of(value)]
            if pieces:
                yield _piece(self._telling.text(name))
            yield from pieces

    def _whole(self, values: Mapping[Any, Any]) -> Iterator[memoryview]:
        """Of what is in a value whose text has nothing of theirs: their texts as well."""
        for name, value in values.items():
            yield _piece(f"{self._telling.text(name)}={type(value).__name__} {self._telling.text(value)}")
            yield from self.of(value)

    def _scope(self, values: Mapping[str, Any], module: str) -> Iterator[memoryview]:
        """Of what code of a module has around it: the code of the module itself, of other code the names."""
        for name, value in values.items():
            if _counts(value, module):
                beside = module in (module_of(value), module_of(getattr(value, "__wrapped__", value)))
                yield from self._whole({name: value if beside or not isinstance(value, _CODE) else written(value)})

    def _method(self, method: MethodType | BuiltinFunctionType) -> Iterator[memoryview]:
        owner = method.__self__
        if isinstance(method, MethodType):
            yield from self._whole({"function": method.__func__})
        if not isinstance(owner, (ModuleType, type, type(None))) or isinstance(method, MethodType):
            yield from self._whole({"self": owner})
        if not isinstance(owner, Params) and not of_library(type(owner)):
            yield from self._once(owner)  # whatever it shows

    def _function(self, function: FunctionType) -> Iterator[memoryview]:
        if not of_library(function):
            yield _piece(steps(function.__code__))
            yield from self._whole(dict(enumerate(function.__defaults__ or ())))
            yield from self._whole(function.__kwdefaults__ or {})
            found = function.__globals__
            named = {name: found[name] for name in sorted(globals_of(function.__code__)) if name in found}
            yield from self._scope(named, module_of(function))
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        yield from self._whole({name: content(cell) for name, cell in cells})

    def _class(self, value: type) -> Iterator[memoryview]:
        for each in value.__mro__:
            for name, member in sorted(vars(each).items()) if not of_library(each) else ():
                if isinstance(member, property):
                    yield from self._inner({f"{name} {end}": getattr(member, end) for end in ("fget", "fset", "fdel")})
                elif isinstance(member, (staticmethod, classmethod, cached_property, FunctionType, partial)):
                    plain = member.func if isinstance(member, cached_property) else member
                    yield from self._inner({name: getattr(plain, "__func__", plain)})
                elif not name.startswith("__"):
                    yield from self._scope({name: member}, each.__module__)

    def _module(self, module: nn.Module) -> Iterator[memoryview]:
        for name, each in module.named_modules():
            yield from self._inner({f"class of {name}": type(each)})
            passed = "_" if of_library(type(each)) else ()  # of what theirs prepare, such as the weights of an RNN
            own = {of: value for of, value in attributes(each).items() if of not in _OF_MODULES}
            yield from self._whole({f"{name}.{of}": inner for of, inner in own.items() if not of.startswith(passed)})
            yield from self._whole(dict(each.named_buffers(name, recurse=False)))  # those that no state has as well
        yield from self._whole({name: each.requires_grad for name, each in module.named_parameters()})
        yield from self._whole(module.state_dict())

    def _object(self, value: Any) -> Iterator[memoryview]:
        yield from self._inner({"class": type(value)})
        if is_dataclass(value):
            parts = [part for part in fields(value) if hasattr(value, part.name)]
            given = [part.name for part in parts if part.init and part.repr]
            others = [part.name for part in parts if part.init != part.repr]
            yield from self._inner({name: getattr(value, name) for name in given})
            yield from self._whole({name: getattr(value, name) for name in others})
        else:
            yield from self._whole(attributes(value))


def _piece(text: str) -> memoryview:
    return memoryview(text.encode())


def _numbers(value: Tensor | np.ndarray[Any, Any] | Matrix) -> Iterator[memoryview]:
    plain: Any = value.toArray() if isinstance(value, Matrix) else value
    try:
        yield from pack_pieces(plain.detach().as_subclass(Tensor) if isinstance(plain, Tensor) else plain)
    except (InvalidInput, RuntimeError, TypeError, ValueError):  # of objects, or without values yet
        yield _piece(written(plain.tolist() if isinstance(plain, np.ndarray) else plain))


def _parts(value: object) -> Mapping[Any, Any] | None:
    """What is in a value whose text has theirs."""
    if isinstance(value, partial):
        return {"func": value.func, **dict(enumerate(value.args)), **value.keywords}
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if isinstance(value, _CACHED):
        return {"cached": value.__wrapped__}
    return value if isinstance(value, Mapping) else vars(value) if isinstance(value, SimpleNamespace) else None


def _has_attributes(value: object) -> bool:
    """Whether a value is an object whose text does not tell all: a data class, or one that shows nothing."""
    if is_dataclass(value):
        return True
    return (type(value).__repr__ is object.__repr__ or callable(value)) and not of_library(type(value))


def _counts(value: object, module: str, *around: object) -> bool:
    """Whether what code of a module has around it is told: not modules, nor objects of libraries, such as loggers."""
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        inner = [*value, *value.values()] if isinstance(value, dict) else value
        known = any(value is each for each in around)
        return known or all(_counts(each, module, value, *around) for each in inner)
    return isinstance(value, (*_PLAIN, *_CODE, partial, nn.Module)) or of_program(type(value), module)
