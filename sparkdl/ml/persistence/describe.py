"""Stable descriptions of values, equal across processes.

A description is the value's text (``sparkdl.ml.persistence.formatting``). If the text leaves something out, the first
16 digits of a SHA-256 follow it. The hash covers

    array, tensor   dtype, shape and bytes
    module          classes, attributes, buffers and parameters of it and its submodules
    function        instructions, constants, defaults and closure; of the globals it names: values, objects of the
                    program's own classes, functions and classes of its own module; other code by name
    class           its functions and plain values, and those of the classes it inherits from
    object          its class and its attributes, unless a library's class shows its values

Comments, docstrings, line numbers, paths and the order of sets do not count, nor do caches: ``cached_property``,
``lru_cache``, and fields of dataclasses that are neither arguments nor shown. A library's code counts by name alone, so
that a fit may resume after an upgrade. An object with Params is described by them, without its random uid.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cached_property, lru_cache, partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from types import SimpleNamespace as Namespace
from typing import Any

import numpy as np
from pyspark.ml import PipelineModel
from pyspark.ml.linalg import Matrix
from pyspark.ml.param import Param, Params
from torch import Tensor, dtype, nn

from sparkdl.errors import InvalidInput
from sparkdl.io.serialization import pack_pieces
from sparkdl.ml.persistence.formatting import format_full_value, is_opaque
from sparkdl.ml.persistence.nested_params import aliases, params_in
from sparkdl.serving.format import code

_SCALARS = (bool, int, float, complex, str, bytes, range, type(None), Enum, dtype, np.generic)
_NUMBERS = (Tensor, np.ndarray, Matrix)
_CACHED = type(lru_cache(len))
_CODE = (FunctionType, BuiltinFunctionType, _CACHED, type)


def describe(value: Any) -> Any:
    """Describe a value: one text, or texts by name if the value has Params or is a list or map of such values."""
    return Describer(aliases(*params_in(value))).describe(value)


@dataclass(frozen=True)
class Describer:
    """Describes values: ``aliases`` replace uids, and ``counts`` tells whether a Param is part of a description."""

    aliases: Mapping[str, str] = field(default_factory=dict)
    counts: Callable[[Params, str], bool] = lambda params, name: True

    def describe(self, value: Any, around: tuple[int, ...] = ()) -> Any:
        """Describe a value as the function ``describe`` does; ``around`` has the ids of the values that hold it."""
        if id(value) in around:
            return self.text(value)
        inner = partial(self.describe, around=(*around, id(value)))
        if isinstance(value, Params):
            return {"class": type(value).__name__, **{name: inner(item) for name, item in self.values(value).items()}}
        if params_in(value):
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            return {self.text(key): inner(item) for key, item in items}
        hasher = _Hasher(self)
        try:
            digest = hasher.digest(value)
            return self.text(value) + (f" {digest[:16]}" if hasher.hidden else "")
        except RecursionError as error:
            raise InvalidInput(f"a {type(value).__name__} is nested too deeply; expected fewer levels.") from error

    def values(self, params: Params) -> dict[str, Any]:
        """Return the values of the Params that count, by name; of a fitted pipeline also its stages."""
        names = {param.name for param in params.params if params.isDefined(param)}
        # pyspark.ml's default seed, a hash of the class name, differs between processes.
        if "seed" in names and not params.isSet("seed") and params.getOrDefault("seed") == hash(type(params).__name__):
            names.remove("seed")
        values = {name: params.getOrDefault(name) for name in sorted(names) if self.counts(params, name)}
        if "callbacks" in names - values.keys():
            callbacks = params.getOrDefault("callbacks")
            values["callbacks"] = [one for one in callbacks if getattr(one, "changes_result", False)]
        return values | ({"stages": params.stages} if isinstance(params, PipelineModel) else {})

    def text(self, value: Any) -> str:
        """Format a value on one line, without uids."""
        return self.replaced(format_full_value(value, self._override))

    def replaced(self, text: str) -> str:
        """Replace the uids in a text."""
        for uid in sorted(self.aliases, key=len, reverse=True):  # a uid may be a prefix of another
            text = text.replace(uid, self.aliases[uid])
        return text

    def _override(self, value: object) -> str | None:
        if isinstance(value, Params):
            return self.aliases.get(value.uid, type(value).__name__)
        if isinstance(value, Param):
            return f"{self.aliases.get(value.parent, value.parent.rpartition('_')[0])}.{value.name}"
        return None


class _Hasher:
    def __init__(self, describer: Describer) -> None:
        self.hidden = False
        self._describer = describer
        self._around: list[int] = []  # the ids of the values that hold the present one
        self._known: dict[int, tuple[object, str]] = {}  # values keep their ids from being reused

    def digest(self, value: Any) -> str:
        if isinstance(value, (*_SCALARS, ModuleType)):
            return self._scalar(value)
        if id(value) in self._around:
            return f"up {len(self._around) - self._around.index(id(value))}"
        if id(value) not in self._known:
            self._around.append(id(value))
            self._known[id(value)] = value, _sha256(type(value).__name__.encode(), *self._pieces(value))
            self._around.pop()
        return self._known[id(value)][1]

    def _scalar(self, value: Any) -> str:
        if isinstance(value, bytes):
            self.hidden = True
            return _sha256(b"bytes", value)
        text = value if isinstance(value, str) else value.__name__ if isinstance(value, ModuleType) else repr(value)
        self.hidden |= text != " ".join(text.split())
        return _sha256(type(value).__name__.encode(), self._describer.replaced(text).encode())

    def _pieces(self, value: Any) -> Iterable[bytes | memoryview]:
        if isinstance(value, _NUMBERS) and not (isinstance(value, np.ndarray) and value.dtype.hasobject):
            self.hidden = True
            return _numbers(value)
        if isinstance(value, (set, frozenset)):  # the order of sets is random, so each element is hashed as the first
            return sorted(map(self._first, value))
        return (self.digest(part).encode() for part in self._parts(value))

    def _first(self, value: Any) -> bytes:
        known, describer = self._known, self._describer
        self._known = {**known}
        digest = self.digest(value)
        self._known, self._describer = known, describer
        return digest.encode()

    def _parts(self, value: Any) -> Iterable[Any]:
        if isinstance(value, Params):
            self.hidden = True
            self._describer = Describer({**aliases(value), **self._describer.aliases}, self._describer.counts)
            return type(value).__name__, self._describer.values(value)
        if isinstance(value, (Mapping, Namespace)):
            items = vars(value) if isinstance(value, Namespace) else value
            return (part for item in items.items() for part in item)
        if isinstance(value, (list, tuple)):
            return value
        if isinstance(value, np.ndarray):
            return value.shape, value.tolist()
        if isinstance(value, partial):
            return value.func, value.args, value.keywords
        return (value.__wrapped__,) if isinstance(value, _CACHED) else self._code_parts(value)

    def _code_parts(self, value: Any) -> Iterable[Any]:
        if isinstance(value, (MethodType, BuiltinFunctionType)):
            owner = value.__self__
            self.hidden |= not isinstance(owner, (ModuleType, type, type(None)))
            return value.__name__, getattr(value, "__func__", None), owner
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, nn.Module):
            self.hidden = True
            return code.module_parts(value)
        return self._object(value)

    def _function(self, function: FunctionType) -> Iterable[Any]:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        closure = {name: code.content(cell) for name, cell in cells}
        self.hidden |= bool(closure) or not code.of_library(function)
        if code.of_library(function):
            return self._describer.text(function), closure
        names = sorted(code.globals_of(function.__code__) & function.__globals__.keys())
        scope = self._scope({name: function.__globals__[name] for name in names}, code.module_of(function))
        return code.instructions(function.__code__), function.__defaults__, function.__kwdefaults__, scope, closure

    def _class(self, value: type) -> Iterable[Any]:
        bases = [base for base in value.__mro__ if not code.of_library(base)]
        self.hidden |= bool(bases)
        yield self._describer.text(value)
        for base in bases:
            for name, member in sorted(vars(base).items()):
                if isinstance(member, property):
                    yield name, member.fget, member.fset, member.fdel
                elif isinstance(member, (staticmethod, classmethod, cached_property, FunctionType, partial)):
                    function = member.func if isinstance(member, cached_property) else member
                    yield name, getattr(function, "__func__", function)
                elif not name.startswith("__"):
                    yield self._scope({name: member}, base.__module__)

    def _scope(self, values: Mapping[str, Any], module: str) -> dict[str, Any]:
        counted = {name: value for name, value in values.items() if _counts(value, module)}
        for name, value in counted.items():
            modules = map(code.module_of, (value, getattr(value, "__wrapped__", value)))
            if isinstance(value, _CODE) and module not in modules:
                counted[name] = self._describer.text(value)
        return counted

    def _object(self, value: Any) -> Iterable[Any]:
        kind = type(value)
        if is_dataclass(value):
            parts = [part for part in fields(value) if (part.init or part.repr) and hasattr(value, part.name)]
            self.hidden |= not all(part.init and part.repr for part in parts)
            return kind, {part.name: getattr(value, part.name) for part in parts}
        if code.of_library(kind) or not (is_opaque(value) or callable(value) or code.of_program(kind)):
            return (self._describer.text(value),)
        self.hidden = True
        return kind, self._describer.text(value), code.attributes(value)


def _sha256(*pieces: bytes | memoryview) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(memoryview(piece).nbytes.to_bytes(8, "little"))
        digest.update(piece)
    return digest.hexdigest()


def _numbers(value: Tensor | np.ndarray[Any, Any] | Matrix) -> Iterable[bytes | memoryview]:
    plain: Any = value.toArray() if isinstance(value, Matrix) else value
    try:
        return pack_pieces(plain.detach().as_subclass(Tensor) if isinstance(plain, Tensor) else plain)
    except (InvalidInput, RuntimeError, TypeError, ValueError):  # strings, or a parameter without values yet
        return [format_full_value(plain.tolist() if isinstance(plain, np.ndarray) else plain).encode()]


def _counts(value: object, module: str, *around: object) -> bool:
    """Whether a value around code is part of its hash: modules and libraries' objects, such as loggers, are not."""
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        inner = [*value, *value.values()] if isinstance(value, dict) else value
        known = any(value is outer for outer in around)
        return known or all(_counts(item, module, value, *around) for item in inner)
    return isinstance(value, (*_SCALARS, *_NUMBERS, *_CODE, partial, nn.Module)) or code.of_program(type(value), module)
