"""The Boosting estimator: sequential members, each trained on the errors of the members before it.

The rows stay on the executors; the driver sees each member and a few sums per round.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.ml import Estimator
from pyspark.sql import DataFrame

from sparkdl.ensembles.base_learner import changed, check_one_class, column, kind_of, leaf, value_of
from sparkdl.ensembles.boosting.gradient import GradientRounds, start_of
from sparkdl.ensembles.boosting.running_sums import MemberResult
from sparkdl.ensembles.boosting.samme import SammeRounds, classes_of
from sparkdl.ensembles.declarations import BoostingParams
from sparkdl.ensembles.members.fit import fit_members
from sparkdl.ensembles.members.member import FittedMembers, Member, Plan, summary
from sparkdl.ensembles.model import EnsembleModel
from sparkdl.ensembles.params import SingleBaseParams
from sparkdl.ensembles.resampling.bootstrap import member_seed
from sparkdl.ensembles.resampling.validation_rows import with_validation_column
from sparkdl.ensembles.target import Target, check_outputs, target_of
from sparkdl.errors import InvalidInput
from sparkdl.training.callbacks.early_stopping import EarlyStopping
from sparkdl.training.objective.objective import OutputKind

Rounds = GradientRounds | SammeRounds
_RATES = {"classifier": 1.0, "regressor": 0.1}
_MOST = {"classifier": 50, "regressor": 100}


class Boosting(SingleBaseParams, BoostingParams, Estimator[EnsembleModel]):
    """Boosts classifiers by SAMME (``samme.py``) and regressors by gradient boosting (``gradient.py``).

    Members train one at a time, since each depends on the members before it. With a ``runDir``, ``fit`` stores each
    finished member. Calling ``fit`` again, also with a larger ``numModels``, loads the stored members and trains the
    rest. ``fit`` recomputes the member weights from the rows; they are bit-identical.

    Raises:
        InvalidInput: a Param has an invalid value.
    """

    def _fit(self, dataset: DataFrame) -> EnsembleModel:
        start = time.monotonic()
        base, kind = self._checked()
        check_one_class([base], dataset)
        base, dataset = with_validation_column(base, dataset)
        if value_of(base, "validationFraction") is not None:
            raise InvalidInput(
                "validationFraction of the base is set, and its pipeline makes the columns that choose the rows; "
                "expected an idCol of the base, so that each member trains on the same rows."
            )
        target = target_of(base, dataset, self.getValidationIndicatorCol())
        check_outputs(base, dataset)
        stopping = EarlyStopping(self.getPatience(), self.getTol())
        begin, settings = self._opened(base, dataset, target, stopping)
        with self.running(dataset) as (rows, plan):
            rounds = begin(rows)
            try:
                members = _boosted(base, rounds, self.getNumModels() or _MOST[kind], self.getSeed(), plan)
            finally:
                rounds.running.close()
        weighted = [(fit.models[0], result.weight) for fit, result in members if result.weight is not None]
        used = len(weighted) if stopping.patience is None else stopping.best or 1
        over, seconds = members[-1][1].stop_reason or "numModels", time.monotonic() - start
        model = EnsembleModel(
            [model for model, _ in weighted[:used]],
            weights=[weight for _, weight in weighted[:used]],
            history=[{**result.row, "seconds": fit.seconds[0]} for fit, result in members],
            report={**summary(*(fit for fit, _ in members)), "over": over, "seconds": seconds},
            **settings,
        )
        model._set(labelCol=target.label)  # members of numbers have learned residuals
        if stopping.patience is not None:
            model.report["best_member"] = used - 1
        return self.named_as(plan.reported(model), base)

    def _opened(
        self, base: Estimator[Any], dataset: DataFrame, target: Target, stopping: EarlyStopping
    ) -> tuple[Callable[[DataFrame], Rounds], dict[str, Any]]:
        kind, prediction = kind_of(base), str(column(base, "predictionCol"))
        rate = self.getLearningRate() or _RATES[kind]
        if kind == "classifier":
            classes, highest = classes_of(dataset, target)
            settings = {"rule": "hard", "numClasses": highest + 1}
            return lambda rows: SammeRounds(rows, target, classes, rate, prediction), settings
        start = start_of(dataset, target)
        return (
            lambda rows: GradientRounds(rows, target, start, rate, prediction=prediction, stopping=stopping),
            {"rule": "sum", "intercept": start.mean},
        )

    def _checked(self) -> tuple[Estimator[Any], OutputKind]:
        base = self.getBase()
        kind = kind_of(base)
        if kind == "estimator":
            raise InvalidInput(
                f"base is a {type(leaf(base)).__name__}, whose output may be anything; boosting expects a classifier "
                "or a regressor."
            )
        if kind == "classifier" and not leaf(base).hasParam("weightCol"):
            raise InvalidInput(
                f"base is a {type(leaf(base)).__name__}, which has no weightCol; boosting of classes sets row weights "
                "and expects one."
            )
        if column(base, "predictionCol") is None:
            raise InvalidInput("base has no predictionCol; boosting reads the members' predictions and expects one.")
        self._check_stopping(base, kind)
        if kind == "regressor" and self.getDisagreementCol():
            raise InvalidInput(
                f"disagreementCol is {self.getDisagreementCol()!r}, but members of a boosted regressor predict "
                "different quantities; expected ''."
            )
        if self.isSet(self.parallelism) and self.getParallelism() > 1:
            warnings.warn("boosting trains one member after the other; it ignores parallelism.", stacklevel=4)
        return base, kind

    def _check_stopping(self, base: Estimator[Any], kind: OutputKind) -> None:
        validation = self.getValidationIndicatorCol()
        early = [name for name in ("validationIndicatorCol", "patience") if self.getOrDefault(name) is not None]
        if kind == "classifier" and early:
            raise InvalidInput(f"{early[0]} is set, but only boosting of regressors uses it; expected None.")
        if early == ["patience"]:
            raise InvalidInput("patience is set and validationIndicatorCol is not; expected both.")
        if validation is not None and column(base, "validationIndicatorCol") == validation:
            raise InvalidInput(
                f"validationIndicatorCol is {validation!r}, and so is the base's; boosting hides these rows from "
                "members, which then have no validation rows. Expected two columns, or one of them unset."
            )


def _boosted(
    base: Estimator[Any], rounds: Rounds, most: int, seed: int, plan: Plan
) -> list[tuple[FittedMembers, MemberResult]]:
    def fit(index: int) -> FittedMembers:
        estimator = changed(base, seed=member_seed(seed, index), **rounds.columns)
        return fit_members([Member(index, estimator)], rounds.member_rows(), plan)

    members, retry = list[tuple[FittedMembers, MemberResult]](), rounds.running.retry_on_lost_blocks
    for index in range(most):
        fitted = retry(partial(fit, index))
        result = retry(partial(rounds.evaluate_member, index, fitted.models[0]))
        members.append((fitted, result))
        if result.stop_reason is not None:
            break
    return members
