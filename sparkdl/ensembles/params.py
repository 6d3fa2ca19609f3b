"""The Params that ensembles share, and what they do alike: copies, maps, persistence, the rows' ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar, TypeVar

from pyspark import StorageLevel
from pyspark.ml import Estimator
from pyspark.ml.evaluation import Evaluator
from pyspark.ml.param import Param, Params
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, IntegralType

from sparkdl.data.columns import listed
from sparkdl.ensembles.base_learner import column, leaf
from sparkdl.ensembles.declarations import MembersParams
from sparkdl.ensembles.identity import configuration
from sparkdl.ensembles.members.member import Plan, Rows
from sparkdl.ensembles.members.store import Kept
from sparkdl.ensembles.model import EnsembleModel
from sparkdl.errors import InvalidInput, SparkdlError
from sparkdl.io import files
from sparkdl.ml.fit_monitor import Watch, watching
from sparkdl.ml.param_maps import map_hash
from sparkdl.ml.params import PredictionParams
from sparkdl.ml.persistence.formatting import plain
from sparkdl.ml.persistence.nested_params import aliases, params_in
from sparkdl.ml.persistence.reader_writer import Saveable, Saved, numbered
from sparkdl.ml.run import Run
from sparkdl.spark.columns import ROW_ID, named
from sparkdl.spark.fingerprint import fingerprint

Ensemble = TypeVar("Ensemble", bound="EnsembleParams")


class EnsembleParams(MembersParams, Saveable):
    """What bagging, boosting, stacking and best-of have in common."""

    _judged_by_rows: ClassVar[bool] = False  # whether members are judged by rows that, by their ids, they have not seen

    _map: Mapping[str, Any] | None = None  # as of MappedEstimator: what a param map has set; None where there was none

    def bases(self) -> list[Estimator[Any]]:
        """The estimators that it trains members of."""
        raise NotImplementedError

    def with_bases(self: Ensemble, bases: list[Estimator[Any]]) -> Ensemble:
        """Set the estimators that it trains members of, in the order of ``bases()``."""
        raise NotImplementedError

    def saved(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        """How many bases there are, and which Params hold evaluators."""
        return {}, {"bases": len(self.bases()), "params": sorted(self._evaluators())}

    def parts(self) -> dict[str, Params]:
        """The bases, and evaluators."""
        return numbered("bases", self.bases()) | {f"params/{name}": one for name, one in self._evaluators().items()}

    def params_in_parts(self) -> set[str]:
        """Params that hold estimators or evaluators."""
        return {param.name for param, value in self._paramMap.items() if _has_writer(value)}

    def with_parts(self, saved: Saved) -> Any:
        """The ensemble with its bases and evaluators."""
        self._set(**{name: saved.part(f"params/{name}") for name in saved.fields["params"]})
        return self.with_bases(saved.numbered("bases", saved.fields["bases"]))

    def _evaluators(self) -> dict[str, Evaluator]:
        return {param.name: value for param, value in self._paramMap.items() if isinstance(value, Evaluator)}

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
            given = sorted(extra.items(), key=lambda each: each[0].name)
            others = [each for _, value in given for each in params_in(value)]
            owners = aliases(self, *others)
            own = {f"{owners.get(each.parent, '')} {each.name}": value for each, value in given}
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
        given = self._ids()
        row_id = F.monotonically_increasing_id() if given is None else _identity(dataset, given)
        return Rows(dataset.withColumn(ROW_ID, row_id), ROW_ID)

    @contextmanager
    def running(self, dataset: DataFrame) -> Iterator[tuple[Rows, Plan]]:
        """The numbered rows, and how members are trained; while the block runs, members are kept, and it is watched.

        Where a change of the numbers that Spark gives rows would matter, the rows are persisted for the block.

        Args:
            dataset: all rows; they are computed once for their fingerprint, in which their numbers count, where there
                is a ``runDir``, and twice where numbers matter.

        Raises:
            InvalidInput: the ``runDir`` holds members of another ensemble, or of other rows.
            SparkdlError: rows that have no ids were given other numbers while the block ran.
        """
        rows, directory = self.numbered(dataset), self.getRunDir()
        watched = self._ids() is None and (self._judged_by_rows or directory is not None)
        with _persisted(rows.frame) if watched and not dataset.storageLevel.useDisk else nullcontext():
            mark = fingerprint(rows.frame) if watched or directory is not None else ""
            if directory is not None:
                directory = self._own_directory(directory, mark)
            keeping = nullcontext() if directory is None else self._keeping(directory, mark)
            with keeping as kept, watching(self._watch(directory)) as watch:
                watch.begin(dataset.sparkSession)
                yield rows, Plan(kept, self.getParallelism(), watch)
            # What is persisted is computed anew where it was evicted, or lost with an executor.
            if watched and fingerprint(rows.frame) != mark:
                raise self._renumbered()

    @contextmanager
    def _keeping(self, directory: str, mark: str) -> Iterator[Kept]:
        """Where members are kept, of the rows that have this fingerprint."""
        kept = Kept(directory)
        kept.begin(configuration(self, self.bases(), mark))
        try:
            yield kept
        finally:
            kept.end()

    def _own_directory(self, directory: str, mark: str) -> str:
        """The directory of this fit: of one with a param map, in that of all."""
        if self._map is None:
            return directory
        return files.join(directory, map_hash(self._map, mark))

    def _watch(self, directory: str | None) -> Watch:
        told = {param.name: plain(self.getOrDefault(param)) for param in self.params if self.isDefined(param)}
        told |= {"class": type(self).__name__}
        bases = [leaf(base) for base in self.bases()]
        events = all(base.getOrDefault("events") for base in bases if base.hasParam("events"))
        return Watch(Run(directory), type(self).__name__, told, events=events, unit="Member")

    def _ids(self) -> str | None:
        """The column of ids; None where Spark numbers the rows."""
        return self.getIdCol() or next((each for base in self.bases() if (each := column(base, "idCol"))), None)

    def _renumbered(self) -> SparkdlError:
        directory = self.getRunDir()
        judged = "members may have been judged by rows that they have seen"
        drawn = "members that are kept may have been drawn from other rows than those they are kept for"
        kept = (
            "" if directory is None else f" Remove {directory!r} as well: members that are kept there were trained so."
        )
        return SparkdlError(
            f"row numbers changed while members were trained, and {judged if self._judged_by_rows else drawn}; "
            f"give idCol, or write the rows to a table and train on that.{kept}"
        )

    def named_as(self, model: EnsembleModel, base: Params) -> EnsembleModel:
        """The model of a fit, with a base's names of output columns, and where members vote softly its thresholds."""
        found = leaf(base)
        outputs = {
            name: found.getOrDefault(name)
            for name in PredictionParams.declared()
            if found.hasParam(name) and found.isDefined(name)
        }
        if model.rule != "soft":  # members of the others heed their own thresholds, or have none
            outputs.pop("thresholds", None)
        return model._set(**outputs, disagreementCol=self.getDisagreementCol())._resetUid(self.uid)


def _identity(dataset: DataFrame, name: str) -> Column:
    """A column of ids, in which each row has one."""
    if name not in dataset.columns:
        raise InvalidInput(f"idCol is {name!r}; the data has {listed(dataset.columns)}.")
    kind = dataset.schema[name].dataType
    if not isinstance(kind, IntegralType) and not (isinstance(kind, DecimalType) and kind.scale == 0):
        raise InvalidInput(f"idCol is {name!r}, of type {kind.simpleString()}; expected integers.")
    missing = F.raise_error(F.lit(f"idCol {name!r} is null in a row; expected an integer of each")).cast("bigint")
    return F.coalesce(named(name).cast("bigint"), missing)


@contextmanager
def _persisted(frame: DataFrame) -> Iterator[None]:
    frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield
    finally:
        frame.unpersist()


def _has_writer(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(isinstance(each, Estimator) for each in value)
    return isinstance(value, (Estimator, Evaluator))
