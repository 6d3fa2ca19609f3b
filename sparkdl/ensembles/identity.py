"""What tells the members of one ensemble from those of another: what they are trained by, and on which rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.ml import Estimator
from pyspark.ml.param import Params
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, UserDefinedType

from sparkdl.ml.shown import written
from sparkdl.spark.columns import named

# Members are the same whatever these are: more of them are trained, elsewhere, or another number of them is used.
_OTHERWISE = ("runDir", "numModels", "parallelism", "patience", "tol", "voting", "disagreementCol")
_ELSEWHERE = ("runDir", "parallelism")  # nor a base's; its own patience and tol do change members
_UNHASHABLE = ("map", "variant")


def configuration(ensemble: Params, bases: Sequence[Estimator[Any]], rows: str) -> dict[str, Any]:
    """What members depend on, for ``Kept.begin``.

    Args:
        ensemble: its Params count, but for how many members there are, where they are kept, and the bases among them.
        bases: what trains members, each with its Params, the stages of pipelines too.
        rows: their fingerprint.

    Returns:
        Texts by name, of a base by the names of its Params, without uids: the same in another process.
    """
    found = {name: _told(value) for name, value in _values(ensemble, _OTHERWISE).items() if not _is_base(value)}
    named_bases = {f"base {index}": _told(base) for index, base in enumerate(bases)}
    return {"ensemble": _name(ensemble), "rows": rows, **found, **named_bases}


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


def _values(params: Params, otherwise: Sequence[str]) -> dict[str, Any]:
    return {
        param.name: params.getOrDefault(param)
        for param in params.params
        if param.name not in otherwise and params.isDefined(param) and not _by_chance(params, param.name)
    }


def _by_chance(params: Params, name: str) -> bool:
    """Whether it is the seed that pyspark.ml gives what was given none: a hash that is another in each process.

    Members have seeds of their own in its place.
    """
    return name == "seed" and not params.isSet(name) and params.getOrDefault(name) == hash(type(params).__name__)


def _is_base(value: Any) -> bool:
    several = isinstance(value, (list, tuple)) and bool(value)
    return all(map(_is_base, value)) if several else isinstance(value, Estimator)


def _told(value: Any) -> Any:
    """A value as text; of what has Params, as texts by their names."""
    if isinstance(value, Params):
        return {
            "class": _name(value),
            **{name: _told(each) for name, each in sorted(_values(value, _ELSEWHERE).items())},
        }
    if isinstance(value, (list, tuple)) and any(isinstance(each, Params) for each in value):
        return {str(index): _told(each) for index, each in enumerate(value)}
    return written(value)


def _name(value: object) -> str:
    return type(value).__name__


def _hashable(kind: DataType) -> bool:
    if isinstance(kind, UserDefinedType):
        return _hashable(kind.sqlType())
    if isinstance(kind, ArrayType):
        return _hashable(kind.elementType)
    if isinstance(kind, StructType):
        return all(_hashable(field.dataType) for field in kind.fields)
    return not isinstance(kind, MapType) and kind.typeName() not in _UNHASHABLE
