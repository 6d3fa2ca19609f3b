"""Identity of an ensemble's members: the Params, bases and rows that their weights depend on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.ml import Estimator
from pyspark.ml.param import Params

from sparkdl.ensembles.base_learner import leaf
from sparkdl.ml.param_declaration import Scope, ValidatedParams
from sparkdl.ml.persistence.describe import Describer
from sparkdl.ml.persistence.nested_params import Ensemble, aliases, params_in, within


def configuration(ensemble: Params, bases: Sequence[Estimator[Any]], rows: str) -> dict[str, Any]:
    """Configuration that determines the members, for ``MemberStore.begin``: descriptions, equal across processes.

    Params of the ensemble count, except its bases, the number of members, and where they are stored. Params of the
    bases and their pipeline stages count, except about how a fit runs, and seeds that member seeds replace. ``rows`` is
    the fingerprint of the rows.
    """
    nested = [one for base in bases for one in within(base) if isinstance(one, Ensemble)]
    reseeded = {id(leaf(base)) for base in [*bases, *(base for one in nested for base in one.base_estimators())]}

    def counts(params: Params, name: str) -> bool:
        scope = _scope(params, name)
        if params is ensemble:
            return Scope.MEMBERS in scope
        return Scope.BASE in scope and not (name == "seed" and id(params) in reseeded)

    describer = Describer(aliases(ensemble, *bases), counts)
    values = {name: value for name, value in describer.values(ensemble).items() if not _has_base(value)}
    values |= {f"base {index}": base for index, base in enumerate(bases)}
    descriptions = {name: describer.describe(value) for name, value in values.items()}
    return {"ensemble": type(ensemble).__name__, "rows": rows, **descriptions}


def _scope(params: Params, name: str) -> Scope:
    declared = params.declared().get(name) if isinstance(params, ValidatedParams) else None
    if declared is not None:
        return declared.scope
    return Scope.FITS if name == "parallelism" else Scope.ALL


def _has_base(value: Any) -> bool:
    return any(isinstance(params, Estimator) for params in params_in(value))
