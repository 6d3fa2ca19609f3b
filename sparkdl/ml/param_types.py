"""Converters of Params: they return the value, or raise ``InvalidInput``, or ``TypeError`` for a wrong type."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from os import PathLike, fspath
from typing import Annotated, Any

from pyspark.ml import Estimator
from pyspark.ml.evaluation import Evaluator
from pyspark.ml.param import TypeConverters

from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.data.columns import InputColumn
from sparkdl.io import fields
from sparkdl.ml.param_declaration import Converter
from sparkdl.rounds import is_algorithm
from sparkdl.training.objective.monitored_value import named_metrics
from sparkdl.training.objective.optimizers import OPTIMIZERS


def by_value(convert: Callable[[Any], Any]) -> Converter:
    """A converter whose errors do not name the Param."""
    return lambda value, name: convert(value)


to_int = by_value(lambda value: TypeConverters.toInt(fields.plain(value)))  # pyspark takes few of numpy's scalars
to_float = by_value(lambda value: TypeConverters.toFloat(fields.plain(value)))
to_boolean = by_value(TypeConverters.toBoolean)
to_string = by_value(lambda value: str(TypeConverters.toString(value)))  # np.str_ is no plain JSON
to_path = by_value(lambda value: str(TypeConverters.toString(fspath(value) if isinstance(value, PathLike) else value)))
to_strings = by_value(lambda value: [*map(str, TypeConverters.toListString(value))])
to_list = by_value(lambda value: list(TypeConverters.toList(value)))  # toList returns a list as it is, without a copy


def checked(valid: Callable[[Any], bool], expected: str, convert: Converter | None = None) -> Converter:
    """A converter that raises ``InvalidInput`` unless the converted value is ``valid``."""
    return number(Annotated[Any, fields.Rule(expected, valid)], convert or (lambda value, name: value))


def number(kind: Any, convert: Converter = to_int) -> Converter:
    """A converter to the numbers of an annotation of ``sparkdl.io.fields``, such as ``Count | None``."""
    return lambda value, name: fields.checked(convert(value, name), kind, name)


to_count = number(fields.Count)
to_seed = number(fields.Seed)
to_several = number(fields.Several)
to_fraction = number(fields.Fraction, to_float)
to_amount = number(fields.NonNegative, to_float)


def one_of(choices: tuple[str, ...]) -> Converter:
    """A converter that raises ``InvalidInput`` for values outside ``choices``."""
    return checked(lambda value: value in choices, f"one of {', '.join(choices)}")


def list_of(kind: type, expected: str) -> Converter:
    """A converter to a new list, which raises ``InvalidInput`` unless all values have this type."""
    as_list = by_value(lambda value: value if isinstance(value, kind) else list(value))
    return checked(
        lambda value: isinstance(value, list) and all(isinstance(item, kind) for item in value), expected, as_list
    )


to_function = checked(callable, "a function or another callable")
to_columns = list_of(InputColumn, "a list of sparkdl.data.InputColumn")
to_estimator = checked(
    lambda value: isinstance(value, Estimator), "a pyspark.ml Estimator, such as LogisticRegression()"
)
to_estimators = list_of(Estimator, "a list of pyspark.ml Estimators")
to_evaluator = checked(
    lambda value: isinstance(value, Evaluator), "a pyspark.ml Evaluator, such as RegressionEvaluator()"
)
to_class_weights = checked(
    lambda weights: (
        weights == "balanced"
        or (isinstance(weights, list) and len(weights) >= 2 and all(0 < weight < math.inf for weight in weights))
    ),
    "'balanced', or a list of a number above 0 for each class",
    by_value(lambda value: value if isinstance(value, str) else TypeConverters.toListFloat(value)),
)
to_thresholds = checked(
    lambda numbers: len(numbers) >= 2 and all(0 <= one < math.inf for one in numbers) and numbers.count(0.0) <= 1,
    "a number of at least 0 for each class, at most one of them 0",
    by_value(TypeConverters.toListFloat),
)
to_labels = checked(
    lambda names: isinstance(names, str) or 0 < len(names) == len({*names}),
    "the name of a column, or distinct names",
    by_value(lambda value: str(value) if isinstance(value, str) else [*map(str, TypeConverters.toListString(value))]),
)
to_strategy = checked(
    lambda value: not isinstance(value, type) and (callable(getattr(value, "attach", None)) or is_algorithm(value)),
    "a strategy, such as AllReduce(), or an algorithm of rounds, such as ParallelSGD(): a dataclass with "
    "uses_optimizer, init, map, reduce, apply, converged and metrics",
)
to_layout = checked(
    lambda value: not isinstance(value, type) and all(hasattr(value, name) for name in ("place", "multiple", "check")),
    "a layout, such as Replicated(): a dataclass that extends sparkdl.training.layouts.Layout",
)
to_metrics = checked(
    lambda metrics: isinstance(metrics, dict) and all(isinstance(name, str) for name, _ in named_metrics(metrics)),
    "a dict of names and torchmetrics metrics",
    by_value(lambda value: dict(value) if isinstance(value, Mapping) else value),
)
to_arguments = checked(
    lambda value: isinstance(value, dict) and all(isinstance(name, str) and name.isidentifier() for name in value),
    "a dict of arguments by name",
    by_value(lambda value: dict(value) if isinstance(value, Mapping) else value),
)
to_optimizer = checked(
    lambda value: value in OPTIMIZERS if isinstance(value, str) else callable(value),
    f"one of {', '.join(OPTIMIZERS)}, an optimizer class, or a function that is called with the parameters",
)


def to_interval(value: Any, name: str) -> Any:
    """A checkpoint interval that ``CheckpointInterval.of`` accepts, or ``"never"``."""
    if value != "never":
        CheckpointInterval.of(value)
    return value
