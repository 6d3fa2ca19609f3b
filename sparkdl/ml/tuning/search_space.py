"""The search space: which hyperparameters of an estimator vary, and between which values.

A key is a Param's name, or ``modelArgs``, ``optimizerArgs`` or ``strategy`` with the name of an argument or a field
after a dot. A value is a list of choices, or a ``Range``.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from pyspark.ml.param import Param

from sparkdl.data.columns import listed
from sparkdl.errors import InvalidInput
from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.ml.tuning.number_range import Range

Searched = TypeVar("Searched", bound=DistributedEstimator)

HYPERPARAMETERS = (
    *(
        "model",
        "loss",
        "optimizer",
        "learningRate",
        "scheduler",
        "schedulerInterval",
        "strategy",
        "batchSize",
        "epochs",
    ),
    *("classWeights", "dropLast", "precision", "channelsLast", "tf32", "syncBatchNorm", "maxGradNorm", "microBatches"),
    *("epochs", "augment", "collate", "patience", "minDelta", "keepBest"),
)
"""The Params that a search may vary; the others name columns, places and limits."""

_ENTRIES = ("modelArgs", "optimizerArgs", "strategy")


@dataclass(frozen=True)
class SearchSpace:
    """The domains of a search by key, checked against its estimator.

    Attributes:
        domains: key -> a ``Range``, or a tuple of choices.
    """

    domains: Mapping[str, Range | tuple[Any, ...]]

    @staticmethod
    def of(space: Mapping[Any, Any], estimator: DistributedEstimator) -> SearchSpace:
        """Check a space, whose keys are Params or their names, and whose values are ranges, mappings of them, or lists.

        Raises:
            InvalidInput: a key is unknown or no hyperparameter, two keys are one setting, or the estimator refuses a
                value.
        """
        if not space:
            raise InvalidInput(
                "paramSpace is empty; expected hyperparameters, such as {'learningRate': Range(1e-4, 1e-1)}."
            )
        named = {key.name if isinstance(key, Param) else key: value for key, value in space.items()}
        for key in named:
            _check_key(key, estimator)
        if {"learningRate", "optimizerArgs.lr"} <= named.keys():
            raise InvalidInput(
                "paramSpace has learningRate and optimizerArgs.lr, which are one number; expected one key."
            )
        for name in _ENTRIES:
            if name in named and any(key.startswith(f"{name}.") for key in named):
                raise InvalidInput(f"paramSpace has {name} and a key {name}.…; expected either of them.")
        checked = SearchSpace({key: _domain(key, value) for key, value in named.items()})
        for key, domain in checked.domains.items():
            ends = (domain.low, domain.high) if isinstance(domain, Range) else domain
            for value in ends:
                _check_value(key, value, domain, estimator)
        return checked

    @property
    def is_finite(self) -> bool:
        """Whether the number of different suggestions is finite."""
        return all(not isinstance(domain, Range) or domain.whole or domain.step for domain in self.domains.values())

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The values of suggested ``params``: choices in place of their indices."""

        def value(domain: Range | tuple[Any, ...], suggested: Any) -> Any:
            return suggested if isinstance(domain, Range) else domain[suggested]

        return {key: value(self.domains[key], suggested) for key, suggested in params.items()}

    def combinations(self) -> int:
        """The number of different suggestions of a finite space; raises InvalidInput for a range without a step."""
        return math.prod(len(values) for values in self._choices())

    def combination(self, number: int) -> dict[str, Any]:
        """The suggestion of this number, from 0: the last key varies fastest."""
        chosen = []
        for values in reversed(self._choices()):
            number, place = divmod(number, len(values))
            chosen.append(values[place])
        return dict(zip(self.domains, reversed(chosen), strict=True))

    def _choices(self) -> list[Sequence[Any]]:
        return [one.values() if isinstance(one, Range) else range(len(one)) for one in self.domains.values()]


def _domain(key: str, value: Any) -> Range | tuple[Any, ...]:
    if isinstance(value, Range):
        return value
    if isinstance(value, Mapping):
        names = {field.name for field in fields(Range)}
        if not {"low", "high"} <= value.keys() <= names:
            raise InvalidInput(
                f"paramSpace[{key!r}] has {listed([*value])}; expected low and high, and of log and step."
            )
        return Range(**value)
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise InvalidInput(f"paramSpace[{key!r}] is {value!r}; expected a list of values, or a Range(low, high).")
    return tuple(value)


def _check_key(key: Any, estimator: DistributedEstimator) -> None:
    name, dot, _ = str(key).partition(".")
    known = [*HYPERPARAMETERS, *(f"{entry}.<name>" for entry in _ENTRIES)]
    if not isinstance(key, str) or not estimator.hasParam(name):
        near = difflib.get_close_matches(name, [*HYPERPARAMETERS, *_ENTRIES], 1)
        hint = f" Did you mean {near[0]}?" if near else f" Expected one of {', '.join(known)}."
        raise InvalidInput(f"paramSpace has the key {key!r}, which {type(estimator).__name__} does not have.{hint}")
    if (dot and name not in _ENTRIES) or (not dot and name not in HYPERPARAMETERS):
        raise InvalidInput(f"paramSpace has {key}, which is no hyperparameter; expected one of {', '.join(known)}.")


def _check_value(key: str, value: Any, domain: Range | tuple[Any, ...], estimator: DistributedEstimator) -> None:
    name, _, entry = key.partition(".")
    if isinstance(domain, Range) and not domain.whole and _wants_whole(name, entry, estimator):
        raise InvalidInput(
            f"paramSpace[{key!r}] is {domain}, which draws floats, and {key} is a whole number; expected a whole low "
            "and step, as in Range(16, 256, step=1)."
        )
    try:
        changed = apply({key: value}, estimator)
        model = changed.getModel()
        inspect.signature(getattr(model, "factory", model)).bind_partial(**changed.getModelArgs())
        changed.objective()
    except (InvalidInput, TypeError, ValueError) as error:
        raise InvalidInput(f"paramSpace[{key!r}] has {value!r}, which the estimator refuses: {error}") from error


def _wants_whole(name: str, entry: str, estimator: DistributedEstimator) -> bool:
    if not entry:
        return estimator.declared()[name].kind in (int, int | None)
    if name == "strategy":
        return isinstance(getattr(estimator.getStrategy(), entry, None), int)
    if name == "modelArgs":
        model = estimator.getModel()
        argument = inspect.signature(getattr(model, "factory", model)).parameters.get(entry)
        return argument is not None and argument.annotation in (int, "int")
    return False


def apply(params: Mapping[str, Any], estimator: Searched) -> Searched:
    """A copy of the estimator with these values by key; raises InvalidInput if its strategy lacks a field."""
    changed: dict[str, Any] = {}
    for key, value in params.items():
        name, dot, entry = key.partition(".")
        if not dot:
            changed[name] = value
        elif name == "strategy":
            strategy = changed.get(name, estimator.getStrategy())
            if not is_dataclass(strategy) or entry not in {field.name for field in fields(strategy)}:
                raise InvalidInput(f"the strategy {strategy!r} has no field {entry!r}.")
            changed[name] = replace(strategy, **{entry: value})  # type: ignore[type-var]
        else:
            changed[name] = {**changed.get(name, estimator.getOrDefault(name)), entry: value}
    return estimator.copy({estimator.getParam(name): value for name, value in changed.items()})
