"""The Params that ensembles share, and what they do alike: copies, maps, persistence, the rows' ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from pyspark.ml import Estimator, Pipeline
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, IntegralType

from sparkdl import files
from sparkdl.ensembles.bases import column, leaf
from sparkdl.ensembles.identity import configuration, rows_fingerprint
from sparkdl.ensembles.kept import Kept
from sparkdl.ensembles.member import Rows
from sparkdl.ensembles.model import EnsembleModel
from sparkdl.errors import InvalidInput
from sparkdl.feed.columns import listed
from sparkdl.ml.mapped import map_hash
from sparkdl.ml.params import CheckedParams, Self, at_least, optional, param
from sparkdl.spark.columns import ROW_ID, named

Ensemble = TypeVar("Ensemble", bound="EnsembleParams")


class EnsembleParams(CheckedParams):
    """What bagging, boosting, stacking and best-of have in common."""

    seed = param("seed", "seed of everything that is random: members' own seeds derive from it", TypeConverters.toInt)
    runDir = param(
        "runDir",
        "directory in which finished members are kept, a path or URI; None keeps none",
        optional(TypeConverters.toString),
    )
    idCol = param(
        "idCol",
        "integer column that is unique, by which rows are drawn; None numbers them",
        optional(TypeConverters.toString),
    )
    parallelism = param(
        "parallelism",
        "fits that run at a time, of members that do not train in a task",
        at_least(1, TypeConverters.toInt, "parallelism"),
    )

    disagreementCol = param(
        "disagreementCol", "column of how far members are apart; '' for none", TypeConverters.toString
    )

    _map: Mapping[str, Any] | None = None  # as of MappedEstimator: what a param map has set; None where there was none

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(seed=0, runDir=None, idCol=None, parallelism=1, disagreementCol="")

    def bases(self) -> list[Estimator[Any]]:
        """The estimators that it trains members of."""
        raise NotImplementedError

    def with_bases(self: Ensemble, bases: list[Estimator[Any]]) -> Ensemble:
        """Set the estimators that it trains members of, in the order of ``bases()``."""
        raise NotImplementedError

    def copy(self: Ensemble, extra: dict[Param[Any], Any] | None = None) -> Ensemble:
        """A copy with the same uid, and copies of its bases.

        Args:
            extra: other values for Params of the copy, or of its bases; its members are then kept in
                ``runDir/<hash>``, or with another ``runDir`` among them there.
        """
        copied = super().copy(extra)
        copied = copied.with_bases([base.copy(extra) for base in copied.bases()])
        if extra is not None:
            # Of whose Params they are, what is the same in another process: a uid ends in random digits.
            owners = {owner: place for place, owner in enumerate(_owners(self))}
            own = {f"{owners.get(each.parent, '')} {each.name}": value for each, value in extra.items()}
            copied._map = None if self.runDir in extra else {**(self._map or {}), **own}
        return copied

    def fitMultiple(self, dataset: DataFrame, paramMaps: Sequence[dict[Param[Any], Any]]) -> Iterator[tuple[int, Any]]:
        """Fit a model for each map; an empty one of several is a map as well."""
        return super(EnsembleParams, self.copy({})).fitMultiple(dataset, paramMaps)  # type: ignore[misc,no-any-return]

    def numbered(self, dataset: DataFrame) -> Rows:
        """The rows with their ids.

        Raises:
            InvalidInput: there is no such column of ids, or it holds no integers.
        """
        given = self.getIdCol() or next((each for base in self.bases() if (each := column(base, "idCol"))), None)
        row_id = F.monotonically_increasing_id() if given is None else _identity(dataset, given)
        return Rows(dataset.withColumn(ROW_ID, row_id), ROW_ID)

    @contextmanager
    def keeping(self, rows: Rows) -> Iterator[Kept | None]:
        """Where members are kept while they are trained, in the block; None for nowhere.

        Args:
            rows: the numbered rows, which are computed once for their fingerprint; their numbers count as well.

        Raises:
            InvalidInput: what is kept there are members of another ensemble, or of other rows.
        """
        directory = self.getRunDir()
        if directory is None:
            yield None
            return
        mark = rows_fingerprint(rows.frame)
        kept = Kept(directory if self._map is None else files.join(directory, map_hash(self._map, mark)))
        kept.begin(configuration(self, self.bases(), mark))
        try:
            yield kept
        finally:
            kept.end()

    def named_as(self, model: EnsembleModel, base: Params) -> EnsembleModel:
        """The model of a fit, with a base's names of output columns, and where members vote softly its thresholds."""
        found = leaf(base)
        outputs = {
            name: found.getOrDefault(name)
            for name in ("predictionCol", "rawPredictionCol", "probabilityCol", "thresholds")
            if found.hasParam(name) and found.isDefined(name)
        }
        if model.rule != "soft":  # members of the others heed their own thresholds, or have none
            outputs.pop("thresholds", None)
        return model._set(**outputs, disagreementCol=self.getDisagreementCol())._resetUid(self.uid)

    def getSeed(self) -> int:
        """The seed."""
        return int(self.getOrDefault(self.seed))

    def setSeed(self: Self, value: int) -> Self:
        """Set the seed."""
        return self._set(seed=value)

    def getRunDir(self) -> str | None:
        """The directory of finished members."""
        value: str | None = self.getOrDefault(self.runDir)
        return value

    def setRunDir(self: Self, value: str | None) -> Self:
        """Set the directory of finished members."""
        return self._set(runDir=value)

    def getIdCol(self) -> str | None:
        """The column of row ids."""
        value: str | None = self.getOrDefault(self.idCol)
        return value

    def setIdCol(self: Self, value: str | None) -> Self:
        """Set the column of row ids."""
        return self._set(idCol=value)

    def getDisagreementCol(self) -> str:
        """The column of how far members are apart."""
        return str(self.getOrDefault(self.disagreementCol))

    def setDisagreementCol(self: Self, value: str) -> Self:
        """Set the column of how far members are apart."""
        return self._set(disagreementCol=value)

    def getParallelism(self) -> int:
        """The fits that run at a time."""
        return int(self.getOrDefault(self.parallelism))

    def setParallelism(self: Self, value: int) -> Self:
        """Set the fits that run at a time."""
        return self._set(parallelism=value)


def _identity(dataset: DataFrame, name: str) -> Column:
    """A column of ids, in which each row has one."""
    if name not in dataset.columns:
        raise InvalidInput(f"idCol is {name!r}; the data has {listed(dataset.columns)}.")
    kind = dataset.schema[name].dataType
    if not isinstance(kind, IntegralType) and not (isinstance(kind, DecimalType) and kind.scale == 0):
        raise InvalidInput(f"idCol is {name!r}, of type {kind.simpleString()}; expected integers.")
    missing = F.raise_error(F.lit(f"idCol {name!r} is null in a row; expected an integer of each")).cast("bigint")
    return F.coalesce(named(name).cast("bigint"), missing)


def _owners(params: Params) -> list[str]:
    """The uids of what has Params in an ensemble: itself, its bases, their stages and their own bases, in order."""
    found = [params.uid]
    inner = params.getStages() if isinstance(params, Pipeline) else []
    inner = [*inner, *(params.bases() if isinstance(params, EnsembleParams) else [])]
    return found + [uid for each in inner for uid in _owners(each)]
