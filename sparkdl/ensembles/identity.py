"""What tells the members of one ensemble from those of another: what they are trained by, and on which rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.ml import Estimator
from pyspark.ml.param import Params

from sparkdl.ensembles.base_learner import leaf
from sparkdl.ml.param_declaration import CheckedParams, Scope
from sparkdl.ml.persistence.describe import Describer
from sparkdl.ml.persistence.nested_params import Ensemble, aliases, within


def configuration(ensemble: Params, bases: Sequence[Estimator[Any]], rows: str) -> dict[str, Any]:
    """What members depend on, for ``Kept.begin``.

    Args:
        ensemble: its Params count, but for how many members there are, where they are kept, and the bases among them.
        bases: what trains members, each with its Params, the stages of pipelines too; but for the seeds that members'
            own replace, and for what says how a fit runs.
        rows: their fingerprint.

    Returns:
        Texts by name, of a base by the names of its Params, as ``describe`` gives them: equal across processes.
    """
    reseeded = {id(last) for last in [*map(leaf, bases), *(each for base in bases for each in _leaves(base))]}

    def counts(params: Params, name: str) -> bool:
        scope = _scope(params, name)
        if params is ensemble:
            return Scope.MEMBERS in scope
        return Scope.BASE in scope and not (name == "seed" and id(params) in reseeded)

    describer = Describer(aliases(ensemble, *bases), counts)
    values = {name: value for name, value in describer.values(ensemble).items() if not _is_base(value)}
    found = {name: describer.describe(value) for name, value in values.items()}
    named_bases = {f"base {index}": describer.describe(base) for index, base in enumerate(bases)}
    return {"ensemble": type(ensemble).__name__, "rows": rows, **found, **named_bases}


def _leaves(base: Params) -> list[Params]:
    """What is given the seeds of members by the ensembles in a base."""
    return [leaf(inner) for each in within(base) if isinstance(each, Ensemble) for inner in each.bases()]


def _scope(params: Params, name: str) -> Scope:
    """What a Param is about; of pyspark.ml's own only the parallelism says how a fit runs."""
    declared = params.declared().get(name) if isinstance(params, CheckedParams) else None
    if declared is not None:
        return declared.scope
    return Scope.FITS if name == "parallelism" else Scope.ALL


def _is_base(value: Any) -> bool:
    several = isinstance(value, (list, tuple)) and bool(value)
    return all(map(_is_base, value)) if several else isinstance(value, Estimator)
