"""The model of an ensemble: votes, mean or sum of its members.

With members m = 1 ... M, weights a_m, classes k and p_m(k) the probability that member m gives to class k,

    soft    raw_k = sum_m a_m p_m(k)                                       classifiers with probabilities
    hard    raw_k = sum_m a_m 1[member m predicts k]                       any classifiers
    mean    prediction = sum_m a_m h_m / sum_m a_m                         numbers, and arrays of numbers
    sum     prediction = intercept + sum_m a_m h_m                         numbers, and arrays of numbers

    probability_k = raw_k / sum_j raw_j          prediction = argmax_k probability_k (/ threshold_k)

The smallest class wins a tie. The disagreement of a vote is the weight share of the members that predict another class
than the ensemble; the disagreement of a mean is the weighted standard deviation.

PyTorch members that read the same columns score batches together (``combine/vmap.py``). All other members append their
columns in turn (``combine/sql.py``). Both ways make one pass over the rows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

from pyspark.ml import Model
from pyspark.ml.tuning import CrossValidatorModel, TrainValidationSplitModel
from pyspark.sql import Column, DataFrame

from sparkdl.ensembles.base_learner import check_member, column, leaf
from sparkdl.ensembles.combine.rules import RULES, VOTES, Combining, Rule
from sparkdl.ensembles.combine.sql import SqlCombiner, with_members, with_voters
from sparkdl.ensembles.combine.vmap import VmapFactory
from sparkdl.ensembles.declarations import DisagreementParams
from sparkdl.ensembles.fitted import FittedEnsemble, evaluate, output_columns
from sparkdl.errors import InvalidInput
from sparkdl.ml.broadcast import ModelBroadcast
from sparkdl.ml.evaluation import Metrics, measure
from sparkdl.ml.model import TorchModel
from sparkdl.ml.report import Report
from sparkdl.ml.udf import with_outputs
from sparkdl.serving.outputs import Outputs, ScoredKind
from sparkdl.serving.predictor import Predictor
from sparkdl.serving.scorer import Scorer
from sparkdl.spark.columns import check_frame, col

_PREDICTIONS = "sparkdl predictions"


class EnsembleModel(FittedEnsemble, DisagreementParams):
    """Combines the predictions of several models.

    Args:
        models: the members, each with its own input columns. The best model replaces the model of a search.
        rule: combination rule: ``"soft"``, ``"hard"``, ``"mean"`` or ``"sum"``.
        weights: weight per member, finite and at least 0, for ``"sum"`` any finite number; default: 1 each. Members
            of weight 0 do not run.
        intercept: constant of ``"sum"``; default: 0.
        numClasses: number of classes; default: the largest number among the members. Hard votes require it unless all
            members are PyTorch models or one of them has ``numClasses``.
        history: a row per member.
        report: metrics of the fit.

    Raises:
        InvalidInput: there are no members, or the members or weights do not fit the rule.
    """

    def __init__(
        self,
        models: Sequence[Model],
        *,
        rule: Rule,
        weights: Sequence[float] | None = None,
        intercept: float = 0.0,
        numClasses: int | None = None,
        history: list[dict[str, Any]] | None = None,
        report: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.models, self.rule = [_best(model) for model in models], rule
        self.weights = [1.0] * len(self.models) if weights is None else [float(weight) for weight in weights]
        self.intercept, self.numClasses = float(intercept), numClasses
        self.history, self.report = history or [], Report.of(report, history)
        self._broadcasts: dict[bool, tuple[VmapFactory, ModelBroadcast]] = {}  # by whether they compute disagreement
        self._check()

    _folders: ClassVar[Mapping[str, str]] = {"models": "members"}
    saved_fields: ClassVar[tuple[str, ...]] = ("rule", "weights", "intercept", "numClasses", "history", "report")

    def _transform(self, dataset: DataFrame) -> DataFrame:
        check_frame(dataset)
        names, (models, weights) = self._names(dataset), self._voters()
        scorer = self._scorer(models, weights)
        if scorer is not None:
            return with_outputs(dataset, scorer, self._shipment(scorer), names, self.numClasses)
        combining = Combining(self.rule, weights, self.intercept, bool(self.getDisagreementCol()))
        return self._combiner(models, combining).with_outputs(dataset, names)

    def predict(self, data: Any) -> Any:
        """Predict in this process if the members can, as ``FittedEnsemble.predict``."""
        scorer = self._scorer(*self._voters())
        if scorer is None:
            return super().predict(data)
        return Predictor(scorer, self._names(), self._shipment(scorer).local(scorer)).predict(data)

    def _measured(self, dataset: DataFrame, label: Any) -> Metrics:
        first: Any = self.models[0]
        if isinstance(first, TorchModel) and first._kind == "estimator":
            scorer = self.copy({self.disagreementCol: ""})._scorer(*self._voters())
            if scorer is None:
                raise InvalidInput("the members read different columns; the loss expects members that read the same.")
            joint = TorchModel(factory=scorer.factory, weights=b"", precision=scorer.precision)
            joint.evaluated, joint._trust = first.evaluated, first._trust
            return evaluate(first._copyValues(joint), dataset, label)
        labels = sorted({name for name in (column(model, "labelCol") for model in self.models) if name})
        if label is None and len(labels) != 1:
            raise InvalidInput(f"labelCol of the members is {labels}; expected model.setLabelCol('label').")
        return measure(self.transform(dataset), label or labels[0], output_columns(self), classes=self._votes)

    def _voters(self) -> tuple[list[Model], tuple[float, ...]]:
        pairs = [pair for pair in zip(self.models, self.weights, strict=True) if pair[1] != 0]
        return [model for model, _ in pairs], tuple(weight for _, weight in pairs)

    def with_votes(
        self, dataset: DataFrame, voters: Sequence[Column], name: str, columns: Sequence[str] = ()
    ) -> DataFrame:
        """Predict rows that have their own voters, like ``transform`` with the members that vote.

        Args:
            dataset: the rows; each has a voter.
            voters: a boolean column per member: whether it votes on the row.
            name: the name of the column of predictions.
            columns: the names of the other columns that the result has.
        """
        combining = Combining(self.rule, tuple(self.weights), self.intercept)
        combiner = replace(self._combiner(self.models, combining), voters=True)
        scorer = self._scorer(self.models, combining.weights) if len(self.models) > 1 else None
        frame, names = with_voters(dataset, voters), {"prediction": name}
        if scorer is None:
            return combiner.with_outputs(frame, names).select(*map(col, [*columns, name]))
        factory = replace(cast(VmapFactory, scorer.factory), combining=replace(combining, separate=True))
        scorer = replace(scorer, factory=factory, outputs=Outputs("estimator"))
        frame = with_outputs(frame, scorer, ModelBroadcast(), {"prediction": _PREDICTIONS})
        return combiner.combined(with_members(frame, _PREDICTIONS, combining), names, columns)

    @property
    def oobScore(self) -> float | None:
        """Out-of-bag score of a ``Bagging`` with ``oobScore=True``, else None."""
        return self.report.get("oob_score")

    def _combiner(self, models: Sequence[Model], combining: Combining) -> SqlCombiner:
        return SqlCombiner(models, combining, self._classes(models), self.getThresholds() if self._votes else None)

    @property
    def _votes(self) -> bool:
        return self.rule in VOTES

    def _names(self, dataset: DataFrame | None = None) -> dict[str, str]:
        params = [self.predictionCol, self.disagreementCol]
        if self._votes:
            params = [self.predictionCol, self.probabilityCol, self.rawPredictionCol, self.disagreementCol]
        elif self.getThresholds() is not None:
            warnings.warn(f"thresholds is set, but only votes use it; the rule {self.rule!r} ignores it.", stacklevel=4)
        if self.rule == "sum" and self.getDisagreementCol():
            raise InvalidInput(
                f"disagreementCol is {self.getDisagreementCol()!r}, but members of a sum predict different quantities; "
                "expected ''."
            )
        if dataset is not None:
            self.check_free(dataset, params)
        return {one.name.removesuffix("PredictionCol").removesuffix("Col"): self.getOrDefault(one) for one in params}

    def _scorer(self, models: Sequence[Model], weights: tuple[float, ...]) -> Scorer | None:
        if not all(isinstance(model, TorchModel) for model in models):
            return None
        members: list[Any] = list(models)
        scorers: list[Scorer] = [member._scorer() for member in members]
        first, disagreement = scorers[0], bool(self.getDisagreementCol())
        kind, scalar = first.outputs.kind, first.outputs.scalar
        if (
            any(_needs(scorer) != _needs(first) for scorer in scorers)
            or self._votes != (kind == "classifier")
            or first.outputs.probabilities
            or any(scorer.device != "cpu" for scorer in scorers)  # each on its own device
        ):
            return None
        if (self.rule == "hard" or disagreement) and any(member.getThresholds() is not None for member in members):
            return None  # with thresholds, a member may not predict the class of its largest score
        meaning: ScoredKind = "votes" if self._votes else kind
        combining = Combining(self.rule, weights, self.intercept, disagreement, same_type=meaning == "estimator")
        thresholds = self.getThresholds() if self._votes else None
        outputs = Outputs(
            meaning,
            None if thresholds is None else tuple(thresholds),
            scalar=scalar,
            vectors=bool(self.getRawPredictionCol() or self.getProbabilityCol()),
            disagreement=disagreement,
        )
        factory = VmapFactory(tuple((scorer.factory, scorer.weights) for scorer in scorers), combining, first.precision)
        return Scorer(factory, b"", outputs, first.precision, first.columns, first.collate, signature=first.signature)

    def _shipment(self, scorer: Scorer) -> ModelBroadcast:
        assert isinstance(scorer.factory, VmapFactory)
        disagreement = scorer.outputs.disagreement
        shipped, broadcast = self._broadcasts.setdefault(disagreement, (scorer.factory, ModelBroadcast()))
        if not shipped.equals(scorer.factory):
            broadcast = ModelBroadcast()
            # A new dictionary: copies of this model share the old one, and may still match its broadcast.
            self._broadcasts = {**self._broadcasts, disagreement: (scorer.factory, broadcast)}
        return broadcast

    def _classes(self, models: Sequence[Model]) -> int | None:
        if self.rule != "hard" or self.numClasses is not None:
            return self.numClasses
        counts = [getattr(leaf(model), "numClasses", None) for model in models]
        if not any(counts):
            raise InvalidInput("the members have no numClasses; hard votes expect EnsembleModel(numClasses=...).")
        return max(int(count) for count in counts if count is not None)

    def _check(self) -> None:
        if self.rule not in RULES:
            raise InvalidInput(f"rule is {self.rule!r}; expected one of {', '.join(RULES)}.")
        if not self.models:
            raise InvalidInput("models is empty; expected at least one fitted model.")
        if len(self.weights) != len(self.models):
            raise InvalidInput(
                f"weights has {len(self.weights)} numbers for {len(self.models)} models; expected one each."
            )
        wrong = not all(map(math.isfinite, self.weights)) or not any(self.weights)
        if wrong or (self.rule != "sum" and min(self.weights) < 0):
            expected = "not all 0" if self.rule == "sum" else "at least 0, not all 0"
            raise InvalidInput(f"weights is {self.weights}; expected finite numbers, {expected}.")
        if self.intercept and self.rule != "sum":
            warnings.warn(
                f"intercept is {self.intercept}, but only a sum uses it; the rule {self.rule!r} ignores it.",
                stacklevel=4,
            )
        for index, model in enumerate(self.models):
            _check_member(index, model, self.rule)


def _best(model: Any) -> Any:
    return _best(model.bestModel) if isinstance(model, (CrossValidatorModel, TrainValidationSplitModel)) else model


def _check_member(index: int, model: Any, rule: Rule) -> None:
    last: Any = leaf(model)
    if not isinstance(model, Model) or not last.hasParam("predictionCol"):
        raise InvalidInput(f"member {index} is a {type(model).__name__}; expected a fitted model that predicts.")
    check_member(f"member {index}", model)
    if rule not in VOTES:
        return
    number = (isinstance(last, TorchModel) and last._kind != "classifier") or (
        isinstance(last, EnsembleModel) and not last._votes
    )
    if number or (rule == "soft" and not last.hasParam("probabilityCol")):
        expected = "a classifier with probabilities" if rule == "soft" else "a classifier"
        raise InvalidInput(f"member {index} is a {type(last).__name__}; expected {expected} for the rule {rule!r}.")


def _needs(scorer: Scorer) -> tuple[Any, ...]:
    outputs = scorer.outputs
    return outputs.kind, scorer.precision, scorer.columns, scorer.collate, outputs.scalar, outputs.probabilities
