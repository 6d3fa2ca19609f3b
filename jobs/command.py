"""What a job is on the command line: its configuration, the rows it reads, its exit code.

A configuration is a YAML file, ``--config FILE``, and any ``--key value`` after it that overrides the file. An unknown
key, in the file or on the command line, is refused and the nearest known one named.

Exit codes: 0 done, 1 failed, 2 bad configuration, 130 interrupted, 143 stopped by SIGTERM, and those of ``ending.py``.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import re
import sys
from abc import ABC
from collections.abc import Callable, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, field, is_dataclass
from functools import cache, partial
from pkgutil import resolve_name
from types import FunctionType, UnionType
from typing import Any, NoReturn, Protocol, Union, get_args, get_origin, get_type_hints

from ending import Ended
from jsonargparse import ArgumentParser, Namespace
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.ml import Pipeline
from pyspark.ml.functions import array_to_vector
from pyspark.ml.param import Params
from pyspark.ml.wrapper import JavaWrapper
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, NumericType
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from sparkdl import Bagging
from sparkdl.cluster.shutdown import TERMINATED, stop_requested, stoppable
from sparkdl.data.columns import Column
from sparkdl.ensembles.params import EnsembleParams
from sparkdl.errors import InvalidInput, SparkdlError, Stopped
from sparkdl.ml.estimator import GangEstimator
from sparkdl.ml.param_declaration import ConstructedParams
from sparkdl.spark.columns import named

_SPEC = {"class_path", "init_args"}
DONE, FAILED, BAD_CONFIGURATION, INTERRUPTED = 0, 1, 2, 130

# What jsonargparse says of a key that it does not know: on the command line, in a group, elsewhere in a file, and of
# one beside init_args where class_path should be.
_UNKNOWN = re.compile(
    r"unrecognized arguments: --([^\s=]+)|Group '(.+)' does not accept option '(.+)'|Option '(.+)' is not accepted|"
    r"(?:Not a valid subclass of \w+\. Got value:|Dict must include a class_path .* got) "
    r"{'(?!class_path|init_args)(\w+)'"
)
_NAMED = re.compile(r"unknown key '[^']*'; (?:did you mean '[^']*'\?|expected one of [\w.]*\w(?:, [\w.]*\w)*)")
_JAVA = re.compile(r"\tat |\t\.\.\. \d+ more|Driver stacktrace:")


@dataclass(frozen=True)
class Data:
    """Rows that Spark reads: exactly one of path, table and query.

    Args:
        path: a file or folder, on any filesystem that Spark reads.
        table: a table or view of the catalog, for example db.name or catalog.db.name.
        query: SQL whose result is read.
        format: of path; parquet, orc, csv, json or another that Spark knows.
        schema: of path; columns and types as in CREATE TABLE, for example "x double, label int". Without it Spark
            takes the file's own, or for csv strings unless options has inferSchema.
        options: the reader's options, for example {header: true} for csv.
        vectors: columns of arrays of numbers that are made vectors, as estimators of pyspark.ml read them.

    Raises:
        InvalidInput: there is another number of places than one, or a setting that its place does not heed.
    """

    path: str | None = None
    table: str | None = None
    query: str | None = None
    format: str = "parquet"
    schema: str | None = None
    options: dict[str, str | int | float | bool] = field(default_factory=dict)
    vectors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        given = [name for name in ("path", "table", "query") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidInput(
                f"rows are to be read from {' and '.join(given) or 'nowhere'}; expected exactly one of path, table "
                "and query."
            )
        unheeded = {"path": (), "table": ("format", "schema"), "query": ("format", "schema", "options")}[given[0]]
        plain = {"format": "parquet", "schema": None, "options": {}}
        for name in unheeded:
            if getattr(self, name) != plain[name]:
                raise InvalidInput(f"rows are read from a {given[0]}, which takes no {name}; leave it out.")

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows, not read before they are needed.

        Raises:
            InvalidInput: a column that is to be a vector is not there, or no array of numbers.
        """
        rows = self._rows(spark)
        for name in self.vectors:
            kind = rows.schema[name].dataType if name in rows.columns else None
            if not (isinstance(kind, ArrayType) and isinstance(kind.elementType, NumericType)):
                found = "not there" if kind is None else f"of type {kind.simpleString()}"
                raise InvalidInput(f"vectors names {name!r}, which is {found}; expected a column of arrays of numbers.")
            rows = rows.withColumn(name, array_to_vector(named(name).cast("array<double>")))
        return rows

    def _rows(self, spark: SparkSession) -> DataFrame:
        if self.query is not None:
            return spark.sql(self.query)
        reader = spark.read.options(**self.options)
        if self.table is not None:
            return reader.table(self.table)
        if self.schema is not None:
            reader = reader.schema(self.schema)
        return reader.format(self.format).load(self.path)


def main(job: Callable[..., None], arguments: Sequence[str] | None = None, *, stops: bool = False) -> int:
    """Run a job with arguments from the command line, ``sys.argv`` by default, and return the exit code.

    What is neither sparkdl's error nor Spark's is a bug: Python prints its traceback and exits with 1.

    Args:
        job: called with the objects that the configuration describes.
        arguments: of the command line.
        stops: whether SIGTERM asks the job to save and to stop, as one that fits heeds it; otherwise, and after 28 s,
            it ends the process.
    """
    parser = Parser(description=inspect.getdoc(job), usage="%(prog)s [--config FILE] [--key value ...]")
    parser.add_argument("--config", action="config", help="a YAML file; keys after it override it")
    parser.add_job(job)
    parser.parse_args(arguments)  # with the defaults, for --print_config
    given = parser.parse_args(arguments, defaults=False)
    told = {"configuration": parser.dump(given, skip_validation=True)} if _told(job) else {}
    with stoppable() if stops else nullcontext():
        return _run(lambda: job(**parser.objects(given), **told))


def _told(job: Callable[..., None]) -> bool:
    """Whether a job is told its own configuration, as YAML: it is then no argument of the command line."""
    return "configuration" in inspect.signature(job).parameters


def _run(call: Callable[[], None]) -> int:
    try:
        call()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Stopped as error:
        print("stopped:", error, file=sys.stderr)
        return TERMINATED
    except InvalidInput as error:
        return _complain(error, BAD_CONFIGURATION)
    except Ended as error:
        return _complain(error, error.code)
    except (SparkdlError, PySparkException) as error:
        return _complain(error, _failed())
    except Py4JJavaError as error:
        return _complain(error.java_exception.toString(), _failed())
    return DONE


def _failed() -> int:
    """The exit code of a failure: once a stop is requested, whatever ends the job is how it stops."""
    return FAILED if stop_requested() is None else TERMINATED


def _complain(error: object, code: int) -> int:
    """Print an error, in several lines where a Python traceback belongs to it, but never with a Java one."""
    text = str(error).partition("\n\nJVM stacktrace:")[0]
    print("error:", "\n".join(line for line in text.splitlines() if not _JAVA.match(line)), file=sys.stderr)
    return code


class Parser(ArgumentParser):
    """A parser of YAML and of the command line, with classes by import path.

    jsonargparse makes a parser of the same class for each ``init_args``, so all of this holds at every level.
    """

    def add_job(self, job: Callable[..., None]) -> None:
        """Add a job's arguments; a dataclass with a protocol among its fields as the class that it is."""
        hints = get_type_hints(job).items()
        kinds = {name: kind for name, kind in hints if is_dataclass(kind) and _protocols(kind)}
        self.add_function_arguments(job, skip={*kinds, *({"configuration"} if _told(job) else ())})
        for name, kind in kinds.items():
            self.add_class_arguments(kind, name)

    def objects(self, config: Namespace) -> dict[str, Any]:
        """What the configuration describes, made.

        The factories among an estimator's arguments are ``functools.partial`` of a class or function and of what was
        given: small to send, and saved with the model as an import path and JSON.

        Raises:
            InvalidInput: a class does not take what it is given.
        """
        _make_functions(config)
        making = _Making()
        try:
            made = self.instantiate(config, instantiators=[(making, Params, True)])
        except ValueError as error:  # what jsonargparse makes of our own, of a class that something may be or not
            raise making.refused or InvalidInput(str(error)) from error
        return {name: value for name, value in vars(made).items() if name != "config"}

    def add_class_arguments(self, theclass: type, nested_key: str | None = None, **kwargs: Any) -> list[str]:
        """Add a class's arguments; one whose type is a protocol takes any class with the protocol's methods."""
        types = _protocols(theclass)
        types |= _open_types(theclass)
        kwargs["skip"] = {*kwargs.get("skip", ()), *types}
        added = super().add_class_arguments(theclass, nested_key, **kwargs)
        prefix = f"{nested_key}." if nested_key else ""
        for name, kind in types.items():
            # Without a default here the class's own holds. jsonargparse would forget the class of a dataclass.
            documented = getattr(getattr(theclass, name, None), "doc", None)
            self.add_argument(f"--{prefix}{name}", type=kind, default=argparse.SUPPRESS, help=documented)
        return [*added, *(prefix + name for name in types)]

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """End with exit code 2, saying what is wrong, and of an unknown key which one was probably meant."""
        unknown = _UNKNOWN.search(message)
        if unknown and not _NAMED.search(message):
            *path, spec = unknown.groups()
            meant = _nearest(".".join(filter(None, path)), self._keys()) if not spec else _nearest(spec, _SPEC)
            message = message[: unknown.start()] + meant
        named = _NAMED.search(message)
        if named and self.exit_on_error:
            place = ".".join(re.findall(r'Parser key "([^"]+)"', message[: named.start()]))
            message = f"{place}: {named[0]}" if place else named[0]
        super().error(message, ex)

    def _keys(self) -> set[str]:
        options = {name[2:] for action in self._actions for name in action.option_strings if name.startswith("--")}
        own = {name for name in options if not name.startswith("print_") and not name.endswith("help")}
        return own if self.exit_on_error else own | _SPEC


def _nearest(key: str, known: Set[str]) -> str:
    heads = {name.partition(".")[0] for name in known}
    head = key.partition(".")[0]
    if head not in heads:
        key, known = head, heads
    close = difflib.get_close_matches(key, known, n=1)
    meant = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(sorted(known))}"
    return f"unknown key {key!r}; {meant}"


def _make_functions(value: Any) -> None:
    """Make partials of models that are functions, wherever there are estimators in a configuration."""
    if isinstance(value, list):
        for each in value:
            _make_functions(each)
    if not isinstance(value, Namespace):
        return
    for each in vars(value).values():
        _make_functions(each)
    model = value.get("model")
    if not isinstance(model, Namespace) or "class_path" not in model:
        return
    function = resolve_name(model.class_path)
    if inspect.isclass(function):
        return
    arguments = Parser()
    arguments.add_function_arguments(function)
    value["model"] = partial(function, **(vars(arguments.instantiate(model.init_args)) if "init_args" in model else {}))


@dataclass
class _Making:
    """Makes what has Params.

    Attributes:
        refused: the first mistake; jsonargparse tells of one in a class that something may be or not in its own words.
    """

    refused: InvalidInput | None = None

    def __call__(self, kind: type[Params], **arguments: Any) -> Params:
        """An estimator, or what else a configuration names."""
        try:
            return _make(kind, arguments)
        except InvalidInput as error:
            self.refused = self.refused or error
            raise


def _make(kind: type[Params], arguments: dict[str, Any]) -> Params:
    if kind is GangEstimator:
        raise InvalidInput("estimator has no class_path; expected sparkdl.TorchClassifier or another estimator.")
    if kind is EnsembleParams:
        raise InvalidInput("ensemble has no class_path; expected sparkdl.Bagging, Boosting, Stacking or BestOf.")
    if issubclass(kind, GangEstimator):
        return kind(**{name: _plain(value) for name, value in arguments.items()})
    if issubclass(kind, JavaWrapper):
        # It makes an object in the JVM at once. The job goes on with this session; one that needs none begins none.
        SparkSession.builder.getOrCreate()
    return kind(**arguments)


def _plain(value: Any) -> Any:
    """A factory without what jsonargparse wraps around its class."""
    return partial(value.args[-1], **value.keywords) if isinstance(value, partial) and value.args else value


def _open_types(kind: type) -> dict[str, Any]:
    """What arguments are in a configuration whose annotations leave it open.

    Of an estimator of ours they leave open what is a factory, to be called on the members, and what is made here.
    """
    if issubclass(kind, Pipeline):
        return {"stages": list[Params]}
    if not issubclass(kind, ConstructedParams):
        return {}
    # None is "not given". What is not given is no argument: the constructor tells it from a default that is given.
    types = {name: _opened(argument.annotation) | None for name, argument in kind.arguments().items()}
    if issubclass(kind, Bagging):
        return types | {"featureSubset": int | float | str | None}  # the first that takes it: 8 is no share
    if not issubclass(kind, GangEstimator):
        return types
    from torchmetrics import Metric  # two seconds, which a job without an estimator can spare itself

    return types | {
        "model": Callable[[], nn.Module],
        "loss": Callable[[Any, Tensor], Any],
        "scheduler": Callable[[Optimizer], LRScheduler] | None,
        "metrics": dict[str, Metric] | None,
        "columns": list[Column],
        "hooks": list[Hook],
    }


class Hook(ABC):  # noqa: B024 - it asks for one of several methods, not for a certain one
    """Any class with one of a hook's methods, so that a configuration may name it and say what it is made with."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return any(hasattr(other, name) for name in ("on_start", "on_step", "on_epoch", "on_end"))


def _hints(kind: type) -> dict[str, Any]:
    try:
        return get_type_hints(inspect.getattr_static(kind, "__init__"))
    except NameError:  # a name that only type checkers import; what jsonargparse makes of it then holds
        return {}


def _protocols(kind: type) -> dict[str, Any]:
    """The arguments of a class whose types are protocols or generic estimators, and what takes any class like them."""
    return {name: _opened(hint) for name, hint in _hints(kind).items() if _opened(hint) != hint}


def _opened(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(_opened(one) for one in get_args(hint))]  # noqa: UP007 - one that is made at run time
    origin = get_origin(hint)
    if inspect.isclass(origin) and issubclass(origin, Params):
        return origin
    if origin is Sequence and _opened(get_args(hint)[0]) != get_args(hint)[0]:
        return list[_opened(get_args(hint)[0])]  # type: ignore[misc] - one that is made at run time
    return _without_annotations(hint) if getattr(hint, "_is_protocol", False) else hint


@cache
def _without_annotations(protocol: type) -> type:
    """The protocol with names of methods and arguments alone: jsonargparse wants their types to be the very same."""
    methods = {
        name: FunctionType(method.__code__, method.__globals__, name, method.__defaults__, method.__closure__)
        for name, method in vars(protocol).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }
    return type(protocol)(protocol.__name__, (Protocol,), {"__module__": protocol.__module__, **methods})
