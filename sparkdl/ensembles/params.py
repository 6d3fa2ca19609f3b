"""Shared behavior of the ensembles: copies, param maps, persistence, row ids and the run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

from pyspark.ml import Estimator
from pyspark.ml.param import Param, Params
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, IntegralType

from sparkdl.ensembles.base_learner import check_column, column, leaf
from sparkdl.ensembles.declarations import FoldCountParams, MembersParams
from sparkdl.ensembles.members.member import Plan
from sparkdl.ensembles.members.store import MemberStore
from sparkdl.ensembles.model import EnsembleModel
from sparkdl.ensembles.resampling.validation_rows import described_splits
from sparkdl.errors import InvalidInput, SparkdlError
from sparkdl.ml.fit_monitor import FitMonitor
from sparkdl.ml.param_declaration import Scope, ValidatedParams
from sparkdl.ml.params import PredictionParams
from sparkdl.ml.persistence.describe import Describer
from sparkdl.ml.persistence.nested_params import Ensemble, aliases, params_in, within
from sparkdl.ml.persistence.reader_writer import SavedInstance
from sparkdl.ml.run import Run
from sparkdl.ml.trials.composite import CompositeEstimator
from sparkdl.ml.trials.single_worker import trains_in_task
from sparkdl.spark.columns import ROW_ID, col
from sparkdl.spark.fingerprint import fingerprint
from sparkdl.spark.session import persisted

Self = TypeVar("Self", bound="EnsembleParams")


class EnsembleParams(MembersParams, CompositeEstimator):
    """Base class of ``Bagging``, ``Boosting``, ``Stacking`` and ``BestOf``."""

    def base_estimators(self) -> list[Estimator[Any]]:
        """The base estimators of the members, in the order of the Params that hold them."""
        return [one for value in self._held().values() for one in params_in(value) if isinstance(one, Estimator)]

    def with_parts(self, saved: SavedInstance) -> Any:
        """The ensemble with its bases and evaluators."""
        if isinstance(saved.fields["params"], list):  # an earlier version saved all estimators in one list
            bases = saved.numbered("bases", saved.fields["bases"])
            self._set(**({"meta": bases.pop()} if saved.fields.get("meta") else {}))
            (name,) = {"base", "bases", "candidates"} & self.declared().keys()
            self._set(**{name: bases[0] if name == "base" else bases} if bases else {})
        return super().with_parts(saved)

    @contextmanager
    def running(self, dataset: DataFrame) -> Iterator[tuple[DataFrame, Plan]]:
        """Open a run: yield the rows with ids in ``ROW_ID`` and the settings of the fit, with store and monitor open.

        If Spark numbers the rows and their numbers matter, the block persists them and verifies the numbers at its end.
        With a ``runDir``, Spark computes the rows once more for their fingerprint; to verify numbers, twice more.

        Raises:
            InvalidInput: the id column is missing or has no integers, or ``runDir`` has other members or rows.
            SparkdlError: the numbers of rows without ids changed during the block.
        """
        if isinstance(self, FoldCountParams) and self.getDisagreementCol():
            warnings.warn(
                f"disagreementCol is {self.getDisagreementCol()!r}; a {type(self).__name__} ignores it: its members do "
                "not vote.",
                stacklevel=5,
            )
        bases = self.base_estimators()
        any(trains_in_task(base, dataset.sparkSession) for base in bases)  # raises if the session has no such tasks
        name = self.getIdCol() or next(filter(None, (column(base, "idCol") for base in bases)), None)
        rows = dataset.withColumn(ROW_ID, F.monotonically_increasing_id() if name is None else _row_id(dataset, name))
        directory, store = self.getRunDir(), None
        verified = name is None and (self._judged_by_rows or directory is not None)
        with ExitStack() as stack:
            if verified and not dataset.storageLevel.useDisk:
                stack.enter_context(persisted(rows))
            mark = fingerprint(rows) if verified or directory is not None else ""
            if directory is not None:
                directory = str(self.run_directory(mark))
                store = MemberStore(directory)
                store.begin(configuration(self, bases, mark), partial(described_splits, bases, rows))
                stack.callback(store.withdraw)
            with self._watch(directory) as watch:
                watch.begin(dataset.sparkSession)
                yield rows, Plan(store, self.getParallelism(), watch)
            # Spark recomputes persisted rows that were evicted or lost with an executor.
            if verified and fingerprint(rows) != mark:
                raise self._renumbered()

    @property
    def _judged_by_rows(self) -> bool:
        return isinstance(self, FoldCountParams)

    def _watch(self, directory: str | None) -> FitMonitor:
        bases = [leaf(base) for base in self.base_estimators()]
        events = all(base.getOrDefault("telemetry") for base in bases if base.hasParam("telemetry"))
        return FitMonitor(Run(directory), self, events=events, unit="Member")

    def _renumbered(self) -> SparkdlError:
        directory = self.getRunDir()
        members = (
            "members may have been evaluated on their training rows"
            if self._judged_by_rows
            else "stored members may have trained on other rows than their fingerprint says"
        )
        stored = "" if directory is None else f" Also delete {directory!r}, which has such members."
        return SparkdlError(
            f"row numbers changed while members trained: {members}. Set idCol, or write the rows to a table and train "
            f"on it.{stored}"
        )

    def named_as(self, model: EnsembleModel, base: Params) -> EnsembleModel:
        """Set a base's output column names on the model and, for soft votes, its thresholds."""
        last = leaf(base)
        names = [name for name in PredictionParams.declared() if last.hasParam(name) and last.isDefined(name)]
        outputs = {name: last.getOrDefault(name) for name in names}
        if model.rule != "soft":  # otherwise, members apply their own thresholds or have none
            outputs.pop("thresholds", None)
        return model._set(**outputs, disagreementCol=self.getDisagreementCol())._resetUid(self.uid)


class SingleBaseParams(EnsembleParams):
    """Shared behavior of the ensembles with one base."""

    base: Param[Estimator[Any]]

    def getBase(self) -> Any:
        """The base estimator."""
        if not self.isDefined(self.base):
            raise InvalidInput(f"base is not set; expected an estimator, as {type(self).__name__}(base=...).")
        return self.getOrDefault(self.base)


def _row_id(dataset: DataFrame, name: str) -> Column:
    check_column(dataset, "idCol", name)
    kind = dataset.schema[name].dataType
    if not isinstance(kind, IntegralType) and not (isinstance(kind, DecimalType) and kind.scale == 0):
        raise InvalidInput(f"idCol is {name!r}, of type {kind.simpleString()}; expected integers, as of F.xxhash64.")
    missing = F.raise_error(F.lit(f"idCol {name!r} is null in a row; expected an integer in each")).cast("bigint")
    return F.coalesce(col(name).cast("bigint"), missing)


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
