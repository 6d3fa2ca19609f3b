"""Declarations of Params: doc, converter, default and scope. They generate accessors and constructors.

    class BatchParams(ValidatedParams):
        batchSize: Param[int] = param("rows of a batch", number(Count), 256)

This class has ``getBatchSize`` and ``setBatchSize``. A subclass of ``ConstructedParams`` also has a constructor and a
``setParams`` with an argument for each Param. docs/param_stubs.py writes the same methods into stubs for type checkers.
"""

from __future__ import annotations

import copy
import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from enum import Flag, auto
from functools import partial
from textwrap import fill
from types import FunctionType
from typing import Any, TypeVar, get_args

from pyspark.ml.param import Param, Params

from sparkdl.ml.persistence.formatting import format_value

Self = TypeVar("Self", bound="ValidatedParams")
Constructed = TypeVar("Constructed", bound="ConstructedParams")
Copied = TypeVar("Copied", bound=Params)

_REQUIRED: Any = object()

Converter = Callable[..., Any]
"""Converts an argument to a Param's value; called as ``converter(value, name=name)``."""


class Scope(Flag):
    """The fits that use a Param, and the identities that include its value."""

    GANG = auto()  # a fit on a gang uses it
    ROUNDS = auto()  # a fit in rounds uses it, whatever the algorithm
    STEPS = auto()  # a fit in rounds uses it if the algorithm takes optimizer steps
    TASK = auto()  # a member of an ensemble that trains in a task uses it
    PARTITIONED = auto()  # a bagging of partitions uses it
    RUN = auto()  # another value makes another run, which cannot resume from the checkpoints
    BASE = auto()  # another value of a base estimator makes other members
    MEMBERS = auto()  # another value of an ensemble makes other members
    PIPELINE = auto()  # another value makes another pipeline run, which cannot resume an earlier one
    FITS = GANG | ROUNDS | STEPS | TASK | PARTITIONED
    ALL = FITS | RUN | BASE | MEMBERS | PIPELINE


class Declared(Param[Any]):
    """A Param in the body of a subclass of ``ValidatedParams``, annotated as ``Param[type of its values]``.

    The annotation resolves at run time. If the annotation allows None, None is a value and the converter never gets it.

    Args:
        doc: one line, for ``explainParams`` and docstrings.
        converter: default: none, any value is valid.
        default: the value if nothing is set; default: None if that is a value, else the Param is required.
        scope: the fits that use it, and the identities that include its value; default: all.
    """

    def __init__(
        self, doc: str, converter: Converter | None = None, default: Any = _REQUIRED, scope: Scope = Scope.ALL
    ) -> None:
        super().__init__(Params._dummy(), "", doc)
        self._converter, self.default, self.scope, self.kind = converter, default, scope, Any

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.typeConverter = self._convert

    def _convert(self, value: Any) -> Any:
        if self._converter is None or (value is None and self.optional):
            return value
        return self._converter(_plain(value), name=self.name)

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is _REQUIRED

    @property
    def optional(self) -> bool:
        """Whether None is a value."""
        return type(None) in get_args(self.kind)

    @property
    def argument(self) -> inspect.Parameter:
        """The argument that sets it."""
        default, kind = (None, self.kind | None) if self.required else (self.default, self.kind)
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


param = Declared  # a declaration reads as a function of its arguments


def with_default(declared: Param[Any], default: Any) -> Declared:
    """Copy a declaration with another default, for the body of a subclass."""
    assert isinstance(declared, Declared)
    changed = copy.copy(declared)
    changed.default = default
    return changed


def own_params(cls: type) -> list[Declared]:
    """The declarations in the body of a class."""
    return [value for value in vars(cls).values() if isinstance(value, Declared)]


class ValidatedParams(Params):
    """Params with one-line explanations, unshared default values, and converters that also check None.

    A Param that a subclass declares with ``param`` has a getter and a setter.
    """

    def __init__(self) -> None:
        super().__init__()
        defaults = {name: param.default for name, param in self.declared().items() if not param.required}
        # Copies, so that instances share no mutable value.
        copied = {name: one if isinstance(one, partial) else copy.deepcopy(one) for name, one in defaults.items()}
        self._setDefault(**copied)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for declared in own_params(cls):
            if declared.name in cls.__annotations__:
                [declared.kind] = get_args(inspect.get_annotations(cls, eval_str=True)[declared.name]) or [Any]
                if declared.required and declared.optional:
                    declared.default = None
            for accessor in _accessors(declared):
                owner = next((place for place in cls.__mro__ if accessor.__name__ in vars(place)), Params)
                if not issubclass(owner, ValidatedParams):  # replaces those of pyspark.ml's mixins
                    accessor.__qualname__ = f"{cls.__qualname__}.{accessor.__name__}"
                    accessor.__module__ = cls.__module__
                    setattr(cls, accessor.__name__, accessor)

    @classmethod
    def declared(cls) -> dict[str, Declared]:
        """The declarations of this class and its bases by name, grouped by the class that first declares them."""
        first = {param.name: place for place in cls.__mro__ for param in own_params(place)}
        names = [param.name for place in cls.__mro__ for param in own_params(place) if first[param.name] is place]
        return {name: param for name in names if isinstance(param := getattr(cls, name), Declared)}

    @classmethod
    def names_outside(cls, scope: Scope) -> tuple[str, ...]:
        """The names of the Params whose scope and ``scope`` do not overlap."""
        return tuple(name for name, param in cls.declared().items() if not param.scope & scope)

    def settings(self, *names: str) -> dict[str, Any]:
        """The values of Params as arguments, by their names in snake case."""
        return {re.sub("[A-Z]", r"_\g<0>", name).lower(): getattr(self, _accessor("get", name))() for name in names}

    def changed_from_default(self, names: tuple[str, ...]) -> list[str]:
        """The names of the Params whose set value differs from the default."""
        params = filter(self.isSet, map(self.getParam, names))
        return [param.name for param in params if self._paramMap[param] != self._defaultParamMap[param]]

    def explainParam(self, param: str | Param[Any]) -> str:
        """Name, doc, default and current value of a Param on one line."""
        param = self._resolveParam(param)
        maps = {"default": self._defaultParamMap, "current": self._paramMap}
        values = [f"{which}: {format_value(values[param])}" for which, values in maps.items() if param in values]
        return f"{param.name}: {param.doc} ({', '.join(values) or 'undefined'})"

    def _set(self: Self, **kwargs: Any) -> Self:
        for name, value in kwargs.items():
            if value is None:  # pyspark calls converters for all other values
                try:
                    self.getParam(name).typeConverter(None)
                except TypeError as error:
                    raise TypeError(f'Invalid param value given for param "{name}". {error}') from None
        return super()._set(**kwargs)

    def _copyValues(self, to: Copied, extra: dict[Param[Any], Any] | None = None) -> Copied:
        copied = super()._copyValues(to, extra)
        # pyspark converts copied values, but shares the defaults between copies.
        return copied._setDefault(**{param.name: value for param, value in copied._defaultParamMap.items()})


class ConstructedParams(ValidatedParams):
    """Params with generated keyword arguments of the constructor and of ``setParams``."""

    _input_kwargs: dict[str, Any]  # the constructor's arguments, as pyspark's keyword_only leaves them

    def __init__(self, **values: Any) -> None:
        _refuse_unknown(values, self.arguments(), f"{type(self).__name__}()")
        super().__init__()
        self._input_kwargs = values
        self._take(values)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, generic in (("__init__", ConstructedParams.__init__), ("setParams", ConstructedParams._set_params)):
            if _is_generated(cls, name, generic):  # a class may define its own constructor
                setattr(cls, name, _signed(generic, name, cls))
        if cls.__doc__ is not None and _is_generated(cls, "__init__", ConstructedParams.__init__):
            cls.__doc__ = _documented(inspect.cleandoc(cls.__doc__), cls.declared().values())

    @classmethod
    def arguments(cls) -> dict[str, inspect.Parameter]:
        """The constructor's arguments by name."""
        return {name: param.argument for name, param in cls.declared().items()}

    def _set_params(self: Constructed, **values: Any) -> Constructed:
        """Set several Params by their setters; None turns off a Param that has a default.

        Args:
            **values: the constructor's arguments.

        Raises:
            TypeError: a Param does not exist, or a value has the wrong type.
            InvalidInput: a Param has an invalid value.
        """
        _refuse_unknown(values, self.arguments(), f"{type(self).__name__}.setParams()")
        for name, value in values.items():
            getattr(self, _accessor("set", name))(value)
        return self

    def _take(self, values: dict[str, Any]) -> None:
        # None sets a Param only if it turns off a default.
        off = {name for name, param in self.declared().items() if param.default is not None and param.optional}
        self._set(**{name: value for name, value in values.items() if value is not None or name in off})


def _accessor(verb: str, name: str) -> str:
    return f"{verb}{name[0].upper()}{name[1:]}"


def _accessors(declared: Declared) -> Iterator[FunctionType]:
    name = declared.name

    def get(self: ValidatedParams) -> Any:
        value = self.getOrDefault(name)
        return copy.copy(value) if isinstance(value, (list, dict)) else value

    def put(self: Self, value: Any) -> Self:
        return self._set(**{name: value})

    for function, verb, doc, annotated in ((get, "get", "Value of", "return"), (put, "set", "Set", "value")):
        assert isinstance(function, FunctionType)
        function.__name__ = _accessor(verb, name)
        function.__doc__ = f"{doc} ``{name}``: {declared.doc}."
        function.__annotations__ = {annotated: declared.kind}
        yield function


def _documented(doc: str, declared: Iterable[Declared]) -> str:
    text, raises, errors = doc.partition("\n\nRaises:\n")
    lines = [text if "\nArgs:\n" in text else f"{text}\n\nArgs:"]
    for param in declared:
        line, value = f"{param.name}: {param.doc}.", param.default
        if not param.required and value is not None:  # the doc explains None
            line += f" Default: {repr(value) if isinstance(value, str) else format_value(value)}."
        if f"\n    {param.name}: " not in text:
            lines.append(fill(line, 116, initial_indent=" " * 4, subsequent_indent=" " * 8))
    return "\n".join(lines) + raises + errors


def _is_generated(cls: type, name: str, generic: Any) -> bool:
    return getattr(getattr(cls, name, generic), "__code__", None) is generic.__code__


def _signed(generic: Any, name: str, cls: type[ConstructedParams]) -> FunctionType:
    arguments = cls.arguments()
    signed = FunctionType(generic.__code__, generic.__globals__, name, None, generic.__closure__)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signed.__signature__ = inspect.Signature([itself, *arguments.values()])  # type: ignore[attr-defined]
    signed.__annotations__ = {name: argument.annotation for name, argument in arguments.items()}
    signed.__doc__, signed.__module__ = generic.__doc__, cls.__module__
    signed.__qualname__ = f"{cls.__qualname__}.{name}"
    return signed


def _plain(value: Any) -> Any:
    """A number, a string or a list in place of a scalar or an array of numpy, pandas or torch, also in a list."""
    if type(value) in (list, tuple):
        return [*map(_plain, value)]
    return value.tolist() if hasattr(value, "tolist") else value


def _refuse_unknown(values: dict[str, Any], known: Iterable[str], call: str) -> None:
    alike = {name.lower(): name for name in known}
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name.replace("_", "").lower(), alike, n=1)  # also of snake case
            meant = f"; did you mean {alike[near[0]]!r}?" if near else ""
            raise TypeError(f"{call} got an unexpected keyword argument {name!r}{meant}")
