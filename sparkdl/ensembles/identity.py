"""What tells the members of one ensemble from those of another: what they are trained by, and on which rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.ml import Estimator
from pyspark.ml.param import Params
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, UserDefinedType

from sparkdl.ensembles.base_learner import leaf
from sparkdl.ensembles.telling import Ensemble, Telling, places, within
from sparkdl.ml.param_declaration import CheckedParams, Scope
from sparkdl.spark.columns import named

_UNHASHABLE = ("map", "variant")


def configuration(ensemble: Params, bases: Sequence[Estimator[Any]], rows: str) -> dict[str, Any]:
    """What members depend on, for ``Kept.begin``.

    Args:
        ensemble: its Params count, but for how many members there are, where they are kept, and the bases among them.
        bases: what trains members, each with its Params, the stages of pipelines too; but for the seeds that members'
            own replace, and for what says how a fit runs.
        rows: their fingerprint.

    Returns:
        Texts by name, of a base by the names of its Params, as ``telling.py`` has them: the same in another process.
    """
    reseeded = {id(last) for last in [*map(leaf, bases), *(each for base in bases for each in _leaves(base))]}

    def counts(params: Params, name: str) -> bool:
        scope = _scope(params, name)
        if params is ensemble:
            return Scope.MEMBERS in scope
        return Scope.BASE in scope and not (name == "seed" and id(params) in reseeded)

    telling = Telling(places(ensemble, *bases), counts)
    found = {name: telling.told(value) for name, value in telling.values(ensemble).items() if not _is_base(value)}
    named_bases = {f"base {index}": telling.told(base) for index, base in enumerate(bases)}
    return {"ensemble": type(ensemble).__name__, "rows": rows, **found, **named_bases}


def rows_fingerprint(frame: DataFrame) -> str:
    """The number of rows, and the sum of their 64-bit hashes (xxHash): the same in whatever order and partitions.

    Columns of types that Spark does not hash, such as maps, do not count. The rows are computed once for it.
    """
    names = sorted(field.name for field in frame.schema.fields if _hashable(field.dataType))
    # With the names, for members read columns by them; and with what is null, which the hash passes over.
    told = [each for name in names for each in (F.lit(name), named(name).isNull(), named(name))]
    hashes = frame.select(F.xxhash64(*told).cast("decimal(20,0)").alias("hash"))
    ((rows, total),) = hashes.agg(F.count("hash"), F.sum("hash")).collect()
    return f"{rows} rows, {total or 0}"


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


def _hashable(kind: DataType) -> bool:
    if isinstance(kind, UserDefinedType):
        return _hashable(kind.sqlType())
    if isinstance(kind, ArrayType):
        return _hashable(kind.elementType)
    if isinstance(kind, StructType):
        return all(_hashable(field.dataType) for field in kind.fields)
    return not isinstance(kind, MapType) and kind.typeName() not in _UNHASHABLE
