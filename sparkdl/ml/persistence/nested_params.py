"""Objects with Params inside the values and stages of others, and aliases for their uids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from pyspark.ml import Estimator, PipelineModel
from pyspark.ml.param import Params


@runtime_checkable
class Ensemble(Protocol):
    """An estimator that trains members of other estimators."""

    def base_estimators(self) -> list[Estimator[Any]]:
        """Return the other estimators."""


def within(params: Params, *around: Params) -> Iterator[Params]:
    """Yield an object with Params and, depth first, those among its values and stages."""
    if any(params is outer for outer in around):
        return
    yield params
    values = [params.getOrDefault(param) for param in params.params if params.isDefined(param)]
    values += [params.stages] if isinstance(params, PipelineModel) else []
    for inner in params_in(values):
        yield from within(inner, params, *around)


def params_in(value: Any, *around: Any) -> list[Params]:
    """Return a value with Params in a list, or the objects with Params in its lists and maps."""
    if isinstance(value, Params):
        return [value]
    if not isinstance(value, (list, tuple, Mapping)) or any(value is outer for outer in around):
        return []
    items = value.values() if isinstance(value, Mapping) else value
    return [params for item in items for params in params_in(item, value, *around)]


def aliases(*roots: Params) -> dict[str, str]:
    """Return ``<class>#<number>`` by uid, for objects with Params and all within them, in this order."""
    uids: dict[str, str] = {}
    for params in (inner for root in roots for inner in within(root)):
        uids.setdefault(params.uid, f"{type(params).__name__}#{len(uids)}")
    return uids
