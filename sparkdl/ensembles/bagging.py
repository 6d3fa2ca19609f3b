"""Bagging: the same base on a new bootstrap sample for each member.

    T_m = base(rows drawn with seed_m)          m = 1 ... M
    T   = argmax_k sum_m p_m(k)                 soft vote: the mean of the members' probabilities
        = argmax_k sum_m 1[T_m = k]             hard vote
        = 1/M sum_m T_m                         regression

Rows are drawn with replacement (L. Breiman, Bagging predictors, Machine Learning 24, 1996) or without (L. Breiman,
Pasting small votes for classification in large databases and on-line, Machine Learning 36, 1999); see
``sparkdl.ensembles.resampling.bootstrap``. With ``maxFeatures``, each member sees a random subspace of the features;
see ``sparkdl.ensembles.resampling.subspace``.

With ``partitioned=True``, each partition trains one member on its own rows, and only models leave it. N. Chawla,
L. Hall, K. Bowyer and W. Kegelmeyer, Learning ensembles from bites, JMLR 5, 2004.

With ``oobScore=True``, ``fit`` also predicts each training row by the members that did not draw it; see
``sparkdl.ensembles.out_of_bag``. A random forest draws features at every split, not once per tree: use the forest of
pyspark.ml for that.
"""

from __future__ import annotations

import time
import warnings
from functools import partial
from typing import Any, cast

from pyspark.ml import Estimator
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl.ensembles.base_learner import changed, check_column, check_one_class, column, kind_of, leaf
from sparkdl.ensembles.combine.rules import Rule
from sparkdl.ensembles.declarations import BaggingParams
from sparkdl.ensembles.members.fit import fit_members
from sparkdl.ensembles.members.member import Member, summary
from sparkdl.ensembles.members.task_fits import fit_partitions
from sparkdl.ensembles.model import EnsembleModel
from sparkdl.ensembles.out_of_bag import check_target, out_of_bag_score
from sparkdl.ensembles.params import SingleBaseParams
from sparkdl.ensembles.resampling.bootstrap import AllRows, Bootstrap, member_seed
from sparkdl.ensembles.resampling.subspace import Subspace
from sparkdl.errors import InvalidInput
from sparkdl.ml.param_declaration import Scope
from sparkdl.ml.trials.single_worker import trains_in_task
from sparkdl.spark.columns import col


class Bagging(SingleBaseParams, BaggingParams, Estimator[EnsembleModel]):
    """Trains the same base on a new bootstrap sample for each member."""

    def _fit(self, dataset: DataFrame) -> EnsembleModel:
        start, base = time.monotonic(), self._checked(dataset)
        kind, in_task = kind_of(base), trains_in_task(base, dataset.sparkSession)
        with self.running(dataset) as (rows, plan):
            members = [self._member(index) for index in range(self.getNumModels())]
            if self.getPartitioned():
                models = fit_partitions(partial(self._member, drawn=False), rows, plan)
            else:
                models = fit_members(members, rows, plan)
            model = EnsembleModel(
                models.models,
                rule=self._rule(kind),
                numClasses=_classes(base, dataset) if kind == "classifier" and not in_task else None,
                history=[*map(self._row, models.models, models.indices, models.seconds)],
                report=summary(models),
            )
            self.named_as(model, base)
            if self.getOobScore():
                model.report.update(out_of_bag_score(model, members, base, rows))
            model.report["seconds"] = time.monotonic() - start
        return plan.reported(model)

    def _member(self, index: int, *, drawn: bool = True) -> Member:
        seed = member_seed(self.getSeed(), index)
        all_rows = not drawn or (self.getSubsamplingRate() == 1 and not self.getBootstrap())
        subset = self.getMaxFeatures()
        return Member(
            index,
            changed(self.getBase(), seed=seed),
            AllRows() if all_rows else Bootstrap(self.getSubsamplingRate(), self.getBootstrap(), seed),
            None if subset is None else Subspace(subset, seed),
        )

    def _checked(self, dataset: DataFrame) -> Estimator[Any]:
        base: Estimator[Any] = self.getBase()
        kind = kind_of(base)
        check_one_class([base], dataset)
        label = column(base, "labelCol")
        if kind == "classifier" and label is not None:
            advice = " Create the column before the ensemble, so that all members number the classes alike."
            check_column(dataset, "labelCol of the base", label, advice)
        if not self.getBootstrap() and self.getSubsamplingRate() > 1:
            raise InvalidInput(
                f"subsamplingRate is {self.getSubsamplingRate():g}; expected at most 1 without bootstrap."
            )
        if self.getPartitioned() and not trains_in_task(base, dataset.sparkSession):
            raise InvalidInput(
                f"partitioned is True, and the base is a {type(leaf(base)).__name__} that does not train in a task; "
                "expected a PyTorch estimator with numWorkers 1 or None and a strategy of a gang. With device='cuda', "
                "Spark has to assign GPUs to tasks (spark.executor.resource.gpu.amount)."
            )
        if self.getOobScore():
            self._check_draws()
            check_target(base, dataset)
        if self.getVoting() is not None and kind != "classifier":
            warnings.warn(f"voting is set, but only classifiers use it; this {kind} ignores it.", stacklevel=4)
        for name in self.names_outside(Scope.PARTITIONED) if self.getPartitioned() else ():
            if self.isSet(name):
                warnings.warn(f"partitioned=True ignores {name}={self.getOrDefault(name)!r}.", stacklevel=4)
        return base

    def _check_draws(self) -> None:
        if self.getPartitioned():
            raise InvalidInput(
                "oobScore is True, and with partitioned=True members draw no rows; expected only one of them."
            )
        if not self.getBootstrap() and self.getSubsamplingRate() == 1:
            raise InvalidInput(
                "oobScore is True, but no row is out of bag: with bootstrap=False and subsamplingRate=1, each member "
                "trains on all rows. Expected bootstrap=True or a smaller subsamplingRate."
            )

    @property
    def _judged_by_rows(self) -> bool:
        return self.getOobScore()

    def _rule(self, kind: str) -> Rule:
        if kind != "classifier":
            return "mean"
        soft = column(self.getBase(), "probabilityCol") is not None
        return cast(Rule, self.getVoting() or ("soft" if soft else "hard"))

    def _row(self, model: Any, index: int, seconds: float) -> dict[str, Any]:
        last = (getattr(model, "history", None) or [{}])[-1]
        metrics = {name: value for name, value in last.items() if name not in ("seconds", "rows_per_second")}
        return {"member": index, "seed": member_seed(self.getSeed(), index), **metrics, "seconds": seconds}


def _classes(base: Estimator[Any], dataset: DataFrame) -> int | None:
    label = column(base, "labelCol")
    if label is None:
        return None
    ((largest,),) = dataset.agg(F.max(col(label))).collect()
    return None if largest is None else int(largest) + 1
