"""Converters of Params: they return the value, or raise an error with the Param's name.

Each is called as ``converter(value, name=name)`` and raises ``InvalidInput``, or ``TypeError`` for a wrong type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.ml import Estimator
from pyspark.ml.evaluation import Evaluator
from pyspark.ml.param import TypeConverters

from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.data.columns import InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.ml.param_declaration import Converter
from sparkdl.rounds import is_algorithm


def by_value(convert: Callable[[Any], Any]) -> Converter:
    """A converter whose errors do not name the Param."""
    return lambda value, name: convert(value)


to_int = by_value(TypeConverters.toInt)
to_float = by_value(TypeConverters.toFloat)
to_boolean = by_value(TypeConverters.toBoolean)
to_string = by_value(TypeConverters.toString)
to_strings = by_value(TypeConverters.toListString)


def at_least(least: float, convert: Converter) -> Converter:
    """A converter that raises ``InvalidInput`` for numbers below ``least``."""

    def checked(value: Any, name: str) -> Any:
        number = convert(value, name)
        if number < least:
            raise InvalidInput(f"{name} is {value!r}; expected at least {least:g}.")
        return number

    return checked


def positive(expected: str = "a number above 0", *, finite: bool = False) -> Converter:
    """A converter that raises ``InvalidInput`` unless a number is above 0 and, with ``finite``, finite."""

    def checked(value: Any, name: str) -> float:
        number: float = TypeConverters.toFloat(value)
        if not number > 0 or (finite and number == float("inf")):
            raise InvalidInput(f"{name} is {value!r}; expected {expected}.")
        return number

    return checked


def one_of(choices: tuple[str, ...]) -> Converter:
    """A converter that raises ``InvalidInput`` for values outside ``choices``."""

    def checked(value: Any, name: str) -> Any:
        if value not in choices:
            raise InvalidInput(f"{name} is {value!r}; expected one of {', '.join(choices)}.")
        return value

    return checked


def optional(convert: Converter) -> Converter:
    """A converter that also takes None, for a Param that can be turned off."""
    return lambda value, name: None if value is None else convert(value, name)


def to_function(value: Any, name: str) -> Any:
    """Any callable."""
    if not callable(value):
        raise InvalidInput(f"{name} is {value!r}; expected a function or another callable.")
    return value


def to_list(value: Any, name: str) -> list[Any]:
    """A new list."""
    return list(TypeConverters.toList(value))  # toList returns a list as it is, without a copy


def to_thresholds(value: Any, name: str) -> list[float]:
    """A threshold per class, for at least two classes."""
    numbers: list[float] = TypeConverters.toListFloat(value)
    if len(numbers) < 2 or min(numbers) < 0 or numbers.count(0.0) > 1:
        raise InvalidInput(
            f"{name} is {value!r}; expected a number of at least 0 for each class, at most one of them 0."
        )
    return numbers


def to_columns(value: Any, name: str) -> list[InputColumn]:
    """A list of ``sparkdl.data.columns.InputColumn``."""
    if isinstance(value, InputColumn) or not all(isinstance(column, InputColumn) for column in value):
        raise InvalidInput(f"{name} is {value!r}; expected a list of sparkdl.data.InputColumn.")
    return list(value)


def to_labels(value: Any, name: str) -> str | list[str]:
    """A column name, or a list of distinct names."""
    if isinstance(value, str):
        return value
    names: list[str] = TypeConverters.toListString(value)
    if not names or len(set(names)) < len(names):
        raise InvalidInput(f"{name} is {value!r}; expected the name of a column, or distinct names.")
    return names


def to_metrics(value: Any, name: str) -> dict[str, Any]:
    """A dict of metrics by name."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidInput(f"{name} is {value!r}; expected a dict of names and torchmetrics metrics.")
    return dict(value)


def to_strategy(value: Any, name: str) -> Any:
    """A strategy of a gang or an algorithm of rounds."""
    if isinstance(value, type) or not (callable(getattr(value, "attach", None)) or is_algorithm(value)):
        raise InvalidInput(
            f"{name} is {value!r}; expected a strategy, such as AllReduce(), or an algorithm of rounds, such "
            "as ParallelSGD(): a dataclass with uses_optimizer, init, map, reduce, apply, converged and metrics."
        )
    return value


def to_interval(value: Any, name: str) -> int | str:
    """A checkpoint interval that ``CheckpointInterval.of`` accepts, or ``"never"``."""
    if value != "never":
        CheckpointInterval.of(value)
    return value  # type: ignore[no-any-return]


def to_estimator(value: Any, name: str) -> Estimator[Any]:
    """An estimator of pyspark.ml."""
    if not isinstance(value, Estimator):
        raise InvalidInput(f"{name} is {value!r}; expected a pyspark.ml Estimator, such as LogisticRegression().")
    return value


def to_estimators(value: Any, name: str) -> list[Estimator[Any]]:
    """A list of estimators of pyspark.ml."""
    if isinstance(value, Estimator) or not all(isinstance(each, Estimator) for each in value):
        raise InvalidInput(f"{name} is {value!r}; expected a list of pyspark.ml Estimators.")
    return list(value)


def to_evaluator(value: Any, name: str) -> Evaluator:
    """An evaluator of pyspark.ml."""
    if not isinstance(value, Evaluator):
        raise InvalidInput(f"{name} is {value!r}; expected a pyspark.ml Evaluator, such as RegressionEvaluator().")
    return value
