"""Stacking: a meta model that learns from out-of-fold predictions of the bases.

D. H. Wolpert, Stacked generalization, Neural Networks 5(2), 1992. With the folds and members of ``folds.py`` and the
vectors z of ``meta_features.py``,

    z_i = (h_(0, k)(x_i), ..., h_(B-1, k)(x_i) [, x_i])    k = fold(i)      by models trained without row i
    m   = meta trained on (z_i, y_i) of all rows
    h_b = base b trained on all rows                                        b = 0 ... B - 1

    prediction of x = m(h_0(x), ..., h_(B-1)(x) [, x])
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from typing import Any, ClassVar, cast

from pyspark.ml import Estimator, Model, Pipeline, PipelineModel
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.param import Param, Params
from pyspark.ml.regression import LinearRegression
from pyspark.sql import DataFrame

from sparkdl.data.columns import listed
from sparkdl.ensembles.base_learner import changed, check_column, check_one_class, kind_of, leaf, value_of
from sparkdl.ensembles.declarations import StackingParams
from sparkdl.ensembles.fitted import FittedEnsemble, evaluate
from sparkdl.ensembles.folds import Folds
from sparkdl.ensembles.members.fit import fit_members
from sparkdl.ensembles.members.member import FittedMembers, Member, summary
from sparkdl.ensembles.meta_features import LEVEL_ONE, MetaFeatureAssembler
from sparkdl.ensembles.params import EnsembleParams
from sparkdl.errors import InvalidInput
from sparkdl.io.weights_file import Weights
from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.ml.evaluation import Metrics
from sparkdl.ml.persistence.reader_writer import SavedInstance
from sparkdl.ml.report import Report

_INPUTS = ("featuresCol", "inputCol", "inputCols")  # one of the first two is what meta reads


class StackingModel(FittedEnsemble):
    """Base models, and a meta model on their predictions.

    ``Stacking.fit`` returns it. One pass over the rows writes the output columns of the meta model.

    Args:
        models: models of the bases, in their order.
        meta: meta model; it reads the column ``LEVEL_ONE``.
        level: assembles the meta features.
        history: a row per member with its ``member``, ``base`` and ``fold``. A ``fold`` of None means all rows; a
            ``base`` of None means meta.
        report: ``seconds``, and the indices of the members ``trained`` and ``restored``.
    """

    def __init__(
        self,
        models: Sequence[Model],
        meta: Model,
        level: MetaFeatureAssembler = MetaFeatureAssembler(),  # noqa: B008 - frozen
        *,
        history: list[dict[str, Any]] | None = None,
        report: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.models, self.meta, self.level = list(models), meta, level
        self.history, self.report = history or [], Report.of(report, history)

    _folders: ClassVar[Mapping[str, str]] = {"models": "bases", "meta": "meta"}
    saved_fields: ClassVar[tuple[str, ...]] = ("history", "report")

    def copy(self, extra: dict[Param[Any], Any] | None = None) -> StackingModel:
        """A copy with the same uid, and copies of its models.

        Args:
            extra: new values for Params of the models; ``meta`` still reads ``LEVEL_ONE``. Default: none.
        """
        copied = super().copy(extra)
        first = _first(self.meta)
        inputs = [first.getParam(name) for name in _INPUTS if first.hasParam(name)]
        copied.meta = self.meta.copy({param: value for param, value in (extra or {}).items() if param not in inputs})
        return copied

    def saved(self) -> tuple[dict[str, Weights], dict[str, Any]]:
        """The fields, and the settings of the meta features."""
        written, fields = super().saved()
        return written, fields | asdict(self.level)

    @classmethod
    def restored(cls, saved: SavedInstance) -> StackingModel:
        """The model without its Params."""
        model: StackingModel = super().restored(saved)
        model.level = MetaFeatureAssembler(saved.fields["classes"], tuple(saved.fields["passthrough"]))
        return model

    def _measured(self, dataset: DataFrame, label: Any) -> Metrics:
        return evaluate(self.meta, self.level.of(dataset, self.models), label)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        return self.meta.transform(self.level.of(dataset, self.models)).drop(LEVEL_ONE)


class Stacking(StackingParams, EnsembleParams, Estimator[StackingModel]):
    """Trains a meta model on out-of-fold predictions of the bases.

    ``fit`` trains each base ``numFolds + 1`` times: once per fold, without the fold's rows, and once on all rows. It
    then trains ``meta``, whose features are the predictions: probabilities of classifiers, else scores, else classes,
    and numbers of regressors.

    Raises:
        InvalidInput: a Param has an invalid value.
    """

    def _fit(self, dataset: DataFrame) -> StackingModel:
        start = time.monotonic()
        label, meta = self._checked(dataset)
        folds, bases = Folds(self.getNumFolds(), self.getSeed()), self.getBases()
        classes = label if kind_of(bases[0]) == "classifier" and isinstance(label, str) else None
        features = tuple(_features(bases[0], dataset)) if self.getPassthrough() else ()
        with self.running(dataset) as (rows, plan):
            count, numbers = folds.count_rows(rows, classes)
            level = MetaFeatureAssembler(numbers, features)
            first = fit_members(folds.members(bases, final=True), rows, plan)
            last, vectors = folds.index(len(bases), 0), level_one(rows, folds, first.models, level)
            second = fit_members([Member(last, folds.seeded(meta, last))], vectors, plan)
        model = StackingModel(
            first.models[folds.count :: folds.count + 1],
            second.models[0],
            level,
            history=_history(folds, first, second),
            report={"seconds": time.monotonic() - start, "rows": count, **summary(first, second)},
        )
        return plan.reported(model)._resetUid(self.uid)

    def _checked(self, dataset: DataFrame) -> tuple[str | list[str], Estimator[Any]]:
        bases = self.getBases()
        if not bases:
            raise InvalidInput(f"bases is {bases}; expected at least one estimator, as Stacking(bases=[...]).")
        kinds = set(map(kind_of, bases))
        check_one_class(self.base_estimators(), dataset)
        if len(kinds) > 1:
            raise InvalidInput(
                f"bases are of several kinds: {', '.join(f'{base.uid} is a {kind_of(base)}' for base in bases)}; "
                "expected only classifiers, or only regressors."
            )
        label = _label(bases)
        for name in [label] if isinstance(label, str) else label:
            advice = " Create the column before the ensemble: meta also learns from it."
            check_column(dataset, "labelCol of the bases", name, advice)
        meta = self.getMeta()
        if meta is None and not isinstance(label, str):
            raise InvalidInput(f"labelCol is {label}; several labels expect a PyTorch estimator as Stacking(meta=...).")
        default = LogisticRegression if "classifier" in kinds else LinearRegression
        return label, _reading(default() if meta is None else meta, label)


def level_one(rows: DataFrame, folds: Folds, models: Sequence[Model], level: MetaFeatureAssembler) -> DataFrame:
    """All rows with their out-of-fold predictions by the members' models, in the order of their indices."""
    frames = [level.of(folds.held_out(rows, fold), models[fold :: folds.count + 1]) for fold in range(folds.count)]
    return reduce(DataFrame.union, frames)


def _history(folds: Folds, first: FittedMembers, second: FittedMembers) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for index, seconds in enumerate(first.seconds):
        base, fold = divmod(index, folds.count + 1)
        rows.append({"member": index, "base": base, "fold": fold if fold < folds.count else None, "seconds": seconds})
    return [*rows, {"member": len(rows), "base": None, "fold": None, "seconds": second.seconds[0]}]


def _label(bases: list[Estimator[Any]]) -> str | list[str]:
    labels = [value_of(base, "labelCol") for base in bases]
    if any(label != labels[0] for label in labels):
        raise InvalidInput(f"the bases have different label columns: {labels}; expected one labelCol.")
    if not labels[0]:
        raise InvalidInput(f"labelCol of {bases[0].uid} is {labels[0]!r}; expected the labels that meta learns from.")
    return cast("str | list[str]", labels[0])


def _reading(meta: Estimator[Any], label: str | list[str]) -> Estimator[Any]:
    last = leaf(meta)
    if not last.hasParam("labelCol"):
        raise InvalidInput(f"meta is {meta.uid}, which has no labelCol; expected an estimator that learns from labels.")
    if last.isSet("labelCol") and last.getOrDefault("labelCol") != label:
        raise InvalidInput(
            f"labelCol of meta is {last.getOrDefault('labelCol')!r}, but the bases have {label!r}; expected the same."
        )
    if isinstance(label, list) and not isinstance(last, DistributedEstimator):
        raise InvalidInput(f"meta is {meta.uid}, which reads one label; expected a PyTorch estimator for {label}.")
    first = _first(meta)
    name = next((name for name in _INPUTS[:2] if first.hasParam(name)), None)
    if name is None:
        raise InvalidInput(
            f"meta begins with {first.uid}, which has no featuresCol and no inputCol; expected one that reads vectors."
        )
    return changed(meta, labelCol=label).copy({first.getParam(name): LEVEL_ONE})


def _first(meta: Any) -> Params:
    while isinstance(meta, (Pipeline, PipelineModel)):
        meta = (meta.getStages() if isinstance(meta, Pipeline) else meta.stages)[0]
    return cast(Params, meta)


def _features(base: Estimator[Any], dataset: DataFrame) -> list[str]:
    last: Any = leaf(base)
    names = last.getInputCols() if isinstance(last, DistributedEstimator) else [value_of(base, "featuresCol")]
    missing = [name for name in names if name not in dataset.columns]
    if missing:
        raise InvalidInput(
            f"passthrough=True, but the features {missing} of {base.uid} are no columns; the data has "
            f"{listed(dataset.columns)}. Create them before the ensemble, as stages of its pipeline."
        )
    return names
