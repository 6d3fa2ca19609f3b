"""Configurations: YAML files and ``--key value``, with classes by import path."""

from __future__ import annotations

import argparse
import difflib
import inspect
import re
import sys
from abc import ABC
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import is_dataclass
from functools import cache, partial
from itertools import pairwise
from pkgutil import resolve_name
from types import FunctionType, UnionType
from typing import Any, NoReturn, Protocol, Union, get_args, get_origin, get_type_hints

from jsonargparse import ArgumentParser, Namespace
from pyspark.ml import Estimator, Pipeline
from pyspark.ml.param import Params
from pyspark.ml.wrapper import JavaWrapper
from pyspark.sql import SparkSession
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from sparkdl.data.columns import InputColumn
from sparkdl.ensembles.declarations import BaggingParams, MembersParams
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import required
from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.ml.param_declaration import ConstructedParams
from sparkdl.ml.tuning.params import TunerParams


class Parser(ArgumentParser):
    """A parser of YAML and of the command line, with classes by import path.

    jsonargparse makes a parser of the same class for each ``init_args``, so all levels behave alike.
    """

    def add_job(self, job: Callable[..., None], *, skip: Set[str] = frozenset()) -> None:
        """Add a job's arguments, except those in ``skip``."""
        # jsonargparse would expand a dataclass with a protocol field, so it is added as a class.
        hints: dict[str, type] = get_type_hints(job)
        kinds = {name: kind for name, kind in hints.items() if is_dataclass(kind) and _protocols(kind)}
        self.add_function_arguments(job, skip={*kinds, *skip})
        for name, kind in kinds.items():
            self.add_class_arguments(kind, name)

    def spelled(self, words: Sequence[str]) -> list[str]:
        """A command line's words, with underscores in the names of keys, and ``true`` for flags without a value."""
        result = []
        for word, following in pairwise([*words, "--"]):
            key, equals, value = word.partition("=")
            name = f"--{key[2:].replace('-', '_')}"
            if key.startswith("--") and key not in self._option_string_actions and name in self._option_string_actions:
                key = name
            flag = getattr(self._option_string_actions.get(key), "_typehint", None) is bool
            alone = flag and not equals and following.startswith("--")
            result.append(f"{key}=true" if alone else f"{key}{equals}{value}")
        return result

    def objects(self, config: Namespace) -> dict[str, Any]:
        """Make the objects of a configuration.

        An estimator's factories become ``functools.partial`` of a class or function: small to pickle, and saved with
        the model as an import path and JSON.

        Raises:
            InvalidInput: a class does not accept its arguments.
        """
        _make_functions(config)
        try:
            objects = self.instantiate(config, instantiators=[(_make, Params, True)])
        except ValueError as error:
            raise _invalid_input(error) from None
        return {name: value for name, value in vars(objects).items() if name != "config"}

    def add_class_arguments(self, theclass: type, nested_key: str | None = None, **kwargs: Any) -> list[str]:
        """Add a class's arguments; a protocol as type accepts any class with its methods, if they have no default."""
        types = _protocols(theclass) | _open_types(theclass)
        kwargs["skip"] = {*kwargs.get("skip", ()), *types}
        added = super().add_class_arguments(theclass, nested_key, **kwargs)
        prefix = f"{nested_key}." if nested_key else ""
        for name, kind in types.items():
            # No default here, so the class's own applies; jsonargparse would lose the class of a dataclass.
            documented = getattr(getattr(theclass, name, None), "doc", None)
            self.add_argument(f"--{prefix}{name}", type=kind, default=argparse.SUPPRESS, help=documented)
        return [*added, *(prefix + name for name in types)]

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """End with exit code 2 and jsonargparse's message; for an unknown key, name the nearest known one."""
        if ex is None or isinstance(ex, KeyError):  # from the command line, and from a file
            known = {part for action in self._actions for part in action.dest.split(".")} | {"class_path", "init_args"}
            keys = ".".join(re.findall(r"(?:--|')([\w.]+)", message)).split(".")
            near = [name for key in keys if key not in known for name in difflib.get_close_matches(key, known, n=1)]
            message += "".join(f" (did you mean {name!r}?)" for name in near)
        super().error(message, ex)


def _make_functions(value: Any) -> None:
    for child in value if isinstance(value, list) else vars(value).values() if isinstance(value, Namespace) else ():
        _make_functions(child)
    model = value.get("model") if isinstance(value, Namespace) else None
    if isinstance(model, Namespace) and "class_path" in model:
        function = resolve_name(model.class_path)
        if not inspect.isclass(function):
            parser = Parser()
            parser.add_function_arguments(function)
            arguments = vars(parser.instantiate(model.init_args)) if "init_args" in model else {}
            value["model"] = partial(function, **arguments)


def _invalid_input(error: ValueError) -> InvalidInput:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, InvalidInput):
            return cause
        cause = cause.__cause__ or cause.__context__
    return InvalidInput(str(error))


def _make(kind: type[Params], **arguments: Any) -> Params:
    if kind is DistributedEstimator:
        raise InvalidInput("estimator has no class_path; expected sparkdl.TorchClassifier or another estimator.")
    if issubclass(kind, MembersParams) and not issubclass(kind, Estimator):
        raise InvalidInput("ensemble has no class_path; expected sparkdl.Bagging, Boosting, Stacking or BestOf.")
    if issubclass(kind, DistributedEstimator):
        for name, value in arguments.items():
            if isinstance(value, partial) and value.args:  # jsonargparse wraps the factory in a partial of its own
                arguments[name] = _without_defaults(value.args[-1], value.keywords)
    if issubclass(kind, JavaWrapper):
        # It makes an object in the JVM at once. The job reuses this session; without such objects none starts here.
        SparkSession.builder.getOrCreate()
    return kind(**arguments)


def _without_defaults(factory: Callable[..., Any], settings: Mapping[str, Any]) -> partial[Any]:
    parameters = inspect.signature(factory).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    return partial(factory, **{name: value for name, value in settings.items() if value != defaults.get(name, ...)})


def _open_types(kind: type) -> dict[str, Any]:
    if issubclass(kind, Pipeline):
        return {"stages": list[Params]}
    if not issubclass(kind, ConstructedParams):
        return {}
    # None means "not given": the constructor distinguishes that from a default that is given.
    types = {name: _opened(argument.annotation) | None for name, argument in kind.arguments().items()}
    if issubclass(kind, BaggingParams):
        return types | {"maxFeatures": int | float | str | None}  # the first that takes it: 8 is no share
    if issubclass(kind, TunerParams):  # a mapping is a range, whose whole numbers stay whole
        return types | {"paramSpace": dict[str, Any], "trackers": list[Callback]}
    if not issubclass(kind, DistributedEstimator):
        return types
    return types | {
        "model": Callable[[], nn.Module],
        "loss": Callable[[Any, Tensor], Any],
        "optimizer": Callable[[Iterable[nn.Parameter]], Optimizer] | str | None,
        "scheduler": Callable[[Optimizer], LRScheduler] | None,
        "metrics": dict[str, AnyMetric] | None,
        "columnSpecs": list[InputColumn],
        "callbacks": list[Callback],
        "trackers": list[Callback],
    }


class AnyMetric(ABC):  # noqa: B024 - it stands for a class
    """Any metric of torchmetrics. A configuration without metrics does not import torchmetrics, which takes 2 s."""

    @classmethod
    def __subclasshook__(cls, subclass: type) -> bool:
        torchmetrics = sys.modules.get("torchmetrics")  # a metric's class exists only if it is imported
        return torchmetrics is not None and issubclass(subclass, torchmetrics.Metric)

    @classmethod
    def __subclasses__(cls) -> list[type]:
        """For jsonargparse, which finds a class by its bare name among them."""
        return [resolve_name("torchmetrics.Metric")]


class Callback(ABC):  # noqa: B024 - a class needs any of several methods, none in particular
    """Any class with a callback's method, so that a configuration may name it with its arguments."""

    @classmethod
    def __subclasshook__(cls, subclass: type) -> bool:
        return any(hasattr(subclass, name) for name in ("on_start", "on_step", "on_epoch", "on_end"))


def _protocols(kind: type) -> dict[str, Any]:
    try:
        hints = get_type_hints(inspect.getattr_static(kind, "__init__"))
    except NameError:  # a name that only type checkers import; jsonargparse's own reading applies
        return {}
    return {name: opened for name, hint in hints.items() if (opened := _opened(hint)) != hint}


def _opened(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(_opened(one) for one in get_args(hint))]  # noqa: UP007 - one that is made at run time
    origin = get_origin(hint)
    if inspect.isclass(origin) and issubclass(origin, Params):
        return origin
    if origin in (list, Sequence) and _opened(get_args(hint)[0]) != get_args(hint)[0]:
        return list[_opened(get_args(hint)[0])]  # type: ignore[misc]  # made at run time
    return _without_annotations(hint) if getattr(hint, "_is_protocol", False) else hint


@cache
def _without_annotations(protocol: type) -> type:
    """The protocol without annotations, since jsonargparse requires identical types of arguments.

    Methods that a class need not have, because the protocol implements them, are left out.
    """
    methods = {}
    for name in required(protocol):
        if isinstance(method := getattr(protocol, name), FunctionType):
            bare = FunctionType(method.__code__, method.__globals__, name, method.__defaults__, method.__closure__)
            bare.__kwdefaults__ = method.__kwdefaults__
            methods[name] = bare
    return type(protocol)(protocol.__name__, (Protocol,), {"__module__": protocol.__module__, **methods})
