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

from sparkdl.data.columns import listed
from sparkdl.errors import InvalidInput
from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.ml.tuning.number_range import Range

Searched = TypeVar("Searched", bound=DistributedEstimator)

HYPERPARAMETERS = (
    *("model", "loss", "optimizer", "learningRate", "scheduler", "schedulerInterval", "strategy", "batchSize"),
    *("classWeights", "dropLast", "precision", "channelsLast", "tf32", "syncBatchNorm", "maxGradNorm", "microBatches"),
    *("epochs", "augment", "collate", "patience", "minDelta", "keepBest"),
)
"""The Params that a search may vary; the others name columns, places and limits."""

_ENTRIES = ("modelArgs", "optimizerArgs", "strategy")
_WHOLE = (int, int | None, "int", "int | None", "Optional[int]")  # annotations of whole numbers


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
        for key in space:
            _check_key(key, estimator)
        if {"learningRate", "optimizerArgs.lr"} <= space.keys():
            raise InvalidInput(
                "paramSpace has learningRate and optimizerArgs.lr, which are one number; expected one key."
            )
        for name in _ENTRIES:
            if name in space and any(key.startswith(f"{name}.") for key in space):
                raise InvalidInput(f"paramSpace has {name} and a key {name}.…; expected either of them.")
        checked = SearchSpace({key: _domain(key, value) for key, value in space.items()})
        ends = {
            key: (domain.low, domain.high) if isinstance(domain, Range) else domain
            for key, domain in checked.domains.items()
        }
        for key, values in ends.items():
            for value in values:
                _check_whole(key, value, checked.domains[key], estimator)
                # Beside the first value of each other key: a choice may need another, as momentum needs SGD.
                _check_value(key, {**{name: first[0] for name, first in ends.items()}, key: value}, estimator)
        return checked

    @property
    def is_finite(self) -> bool:
        """Whether the number of different suggestions is finite."""
        return all(not isinstance(domain, Range) or domain.whole or domain.step for domain in self.domains.values())

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The values for the estimator: each index in ``params`` becomes the choice at that index of its list."""

        def value(domain: Range | tuple[Any, ...], suggested: Any) -> Any:
            return suggested if isinstance(domain, Range) else domain[suggested]

        return {key: value(self.domains[key], suggested) for key, suggested in params.items()}

    def combinations(self) -> int:
        """The number of different suggestions of a finite space; raises InvalidInput for a range without a step."""
        return math.prod(map(_count, self.domains.values()))

    def combination(self, number: int) -> dict[str, Any]:
        """The suggestion of this number, from 0: the last key varies fastest."""
        chosen: dict[str, Any] = {}
        for key in reversed([*self.domains]):
            domain = self.domains[key]
            number, index = divmod(number, _count(domain))
            chosen[key] = domain.low + index * (domain.step or 0) if isinstance(domain, Range) else index
        return {key: chosen[key] for key in self.domains}


def _count(domain: Range | tuple[Any, ...]) -> int:
    return domain.count if isinstance(domain, Range) else len(domain)


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
    plain = [(type(one), one) for one in value if isinstance(one, (bool, int, float, str, type(None)))]
    if len({*plain}) < len(plain):
        raise InvalidInput(f"paramSpace[{key!r}] is {value!r}; expected each value once.")
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


def _check_whole(key: str, value: Any, domain: Range | tuple[Any, ...], estimator: DistributedEstimator) -> None:
    floats = not domain.whole if isinstance(domain, Range) else isinstance(value, float)
    if floats and _wants_whole(*key.partition(".")[::2], estimator):
        what = f"{domain}, which draws floats" if isinstance(domain, Range) else f"{value!r}"
        raise InvalidInput(
            f"paramSpace[{key!r}] has {what}, and {key} is a whole number; expected whole numbers, or a whole low and "
            "step, as in Range(16, 256, step=1)."
        )


def _check_value(key: str, values: Mapping[str, Any], estimator: DistributedEstimator) -> None:
    parameters: Sequence[str] = ()
    try:
        changed = apply(values, estimator)
        model = changed.getModel()
        signature = inspect.signature(getattr(model, "factory", model))
        parameters = [*signature.parameters]
        signature.bind_partial(**changed.getModelArgs())
        changed.objective()
    except (InvalidInput, TypeError, ValueError) as error:
        near = difflib.get_close_matches(key.partition(".")[2], parameters, 1) if "unexpected" in str(error) else []
        hint = f" Did you mean modelArgs.{near[0]}?" if near else ""
        raise InvalidInput(
            f"paramSpace[{key!r}] has {values[key]!r}, which the estimator refuses: {error}{hint}"
        ) from error


def _wants_whole(name: str, entry: str, estimator: DistributedEstimator) -> bool:
    if not entry:
        return estimator.declared()[name].kind in _WHOLE
    if name == "strategy":
        return isinstance(getattr(estimator.getStrategy(), entry, None), int)
    if name == "modelArgs":
        model = estimator.getModel()
        argument = inspect.signature(getattr(model, "factory", model)).parameters.get(entry)
        return argument is not None and argument.annotation in _WHOLE
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
            names = [field.name for field in fields(strategy)] if is_dataclass(strategy) else []
            if entry not in names:
                raise InvalidInput(f"the strategy {strategy!r} has no field {entry!r}; it has {listed(names)}.")
            changed[name] = replace(strategy, **{entry: value})
        else:
            changed[name] = {**changed.get(name, estimator.getOrDefault(name)), entry: value}
    return estimator.copy({estimator.getParam(name): value for name, value in changed.items()})
