"""Bagging: the same base on rows that are drawn anew for each member.

    T_m = base(rows drawn with seed_m)          m = 1 ... M
    T   = argmax_k sum_m p_m(k)                 soft vote: the mean of the members' probabilities
        = argmax_k sum_m 1[T_m = k]             hard vote
        = 1/M sum_m T_m                         numbers

Rows are drawn with replacement, as L. Breiman has it (Bagging predictors, Machine Learning 24, 1996), or without
(Pasting small votes for classification in large databases and on-line, Machine Learning 36, 1999); with
``featureSubset`` each member sees some of the features (random subspaces, see
``sparkdl.ensembles.resampling.subspace``). How rows are drawn is in ``sparkdl.ensembles.resampling.bootstrap``.

With ``partitioned=True`` no row leaves its partition: every partition trains a member of its own, and only models
travel. N. Chawla, L. Hall, K. Bowyer and W. Kegelmeyer, Learning ensembles from bites, JMLR 5, 2004.

A random forest draws features at every split, not for every tree: for that take pyspark.ml's own.
"""

from __future__ import annotations

import time
import warnings
from functools import partial
from typing import Any

from pyspark import keyword_only
from pyspark.ml import Estimator
from pyspark.ml.param import TypeConverters
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl.data.columns import listed
from sparkdl.ensembles.base_learner import changed, column, kind_of, leaf, trains_in_task
from sparkdl.ensembles.combine.rules import Rule
from sparkdl.ensembles.members.fit import fit_members
from sparkdl.ensembles.members.member import Member, Models
from sparkdl.ensembles.members.task_fits import fit_partitions
from sparkdl.ensembles.model import EnsembleModel
from sparkdl.ensembles.params import EnsembleParams
from sparkdl.ensembles.resampling.bootstrap import Bootstrap, Everything, member_seed
from sparkdl.ensembles.resampling.subspace import Subspace, feature_subset
from sparkdl.errors import InvalidInput
from sparkdl.ml.params import Self, at_least, one_of, optional, param
from sparkdl.spark.columns import named

_DRAWN = ("numModels", "subsample", "replace")


def _subsample(value: Any) -> float:
    number: float = TypeConverters.toFloat(value)
    if not 0 < number < float("inf"):
        raise InvalidInput(f"subsample is {value!r}; expected a number above 0.")
    return number


class Bagging(EnsembleParams, Estimator[EnsembleModel]):
    """Bagging.

    Args:
        base: what the members are trained by. PyTorch ones of one worker train in tasks of one Spark job, as many at a
            time as there are slots; all others as fits of the driver.
        numModels: default 10.
        subsample: how often a row is drawn for a member on average; default 1.
        replace: whether a member may be given a row several times; default True. Where rows repeat, a base with a
            ``weightCol`` is given weights in place of copies.
        featureSubset: features that each member sees: ``"sqrt"``, ``"log2"``, a share of them, or a number; default
            None, all. A PyTorch member sees 0 in place of those that it does not; others are given a vector without.
        voting: of classifiers: ``"soft"`` or ``"hard"``; default None, soft where the base has probabilities.
        partitioned: a member for each partition of the rows, trained on these alone; default False.
        parallelism: fits that the driver runs at a time; default 1.
        seed: default 0.
        idCol: unique integers, by which rows are drawn; default: numbered as they come.
        runDir: where finished members are kept, a path or URI that executors see too: none of them is trained again.
            More ``numModels`` than before train the further ones. Default none.
        disagreementCol: how far members are apart, of every row; default ``""``, none.
    """

    base = param("base", "the estimator that members are trained by")
    numModels = param("numModels", "members", at_least(1, TypeConverters.toInt, "numModels"))
    subsample = param("subsample", "how often a row is drawn for a member, on average", _subsample)
    replace = param("replace", "whether a member may be given a row several times", TypeConverters.toBoolean)
    featureSubset = param(
        "featureSubset", "features a member sees: 'sqrt', 'log2', a share or a number; None for all", feature_subset
    )
    voting = param(
        "voting",
        "of classifiers: soft or hard; None for soft where there are probabilities",
        optional(one_of(("soft", "hard"), "voting")),
    )
    partitioned = param("partitioned", "a member for each partition, of its rows alone", TypeConverters.toBoolean)

    _input_kwargs: dict[str, Any]

    @keyword_only
    def __init__(
        self,
        *,
        base: Estimator[Any] | None = None,
        numModels: int | None = None,
        subsample: float | None = None,
        replace: bool | None = None,
        featureSubset: str | float | int | None = None,
        voting: str | None = None,
        partitioned: bool | None = None,
        parallelism: int | None = None,
        seed: int | None = None,
        idCol: str | None = None,
        runDir: str | None = None,
        disagreementCol: str | None = None,
    ) -> None:
        super().__init__()
        self._setDefault(numModels=10, subsample=1.0, replace=True, featureSubset=None, voting=None, partitioned=False)
        self._set(**{name: value for name, value in self._input_kwargs.items() if value is not None})

    def _fit(self, dataset: DataFrame) -> EnsembleModel:
        start, base = time.monotonic(), self._checked(dataset)
        kind = kind_of(base)
        with self.running(dataset) as (rows, plan):
            if self.getPartitioned():
                models = fit_partitions(partial(self._member, drawn=False), rows, plan)
            else:
                models = fit_members([self._member(index) for index in range(self.getNumModels())], rows, plan)
        made = EnsembleModel(
            models.models,
            rule=self._rule(kind),
            numClasses=_classes(base, dataset) if kind == "classifier" and not trains_in_task(base) else None,
            history=[self._row(models, position) for position in range(len(models.models))],
            report={"seconds": time.monotonic() - start, "trained": models.trained, "restored": models.restored},
        )
        return self.named_as(plan.told(made), base)

    def _member(self, index: int, *, drawn: bool = True) -> Member:
        seed = member_seed(self.getSeed(), index)
        whole = not drawn or (self.getSubsample() == 1 and not self.getReplace())
        subset = self.getFeatureSubset()
        return Member(
            index,
            changed(self.getBase(), seed=seed),
            Everything() if whole else Bootstrap(self.getSubsample(), self.getReplace(), seed),
            None if subset is None else Subspace(subset, seed),
        )

    def _checked(self, dataset: DataFrame) -> Estimator[Any]:
        """The base, if it can be bagged so."""
        base: Estimator[Any] = self.getBase()
        kind = kind_of(base)
        label = column(base, "labelCol")
        if kind == "classifier" and label is not None and label not in dataset.columns:
            raise InvalidInput(
                f"labelCol of the base is {label!r}, which is no column; the data has {listed(dataset.columns)}. Each "
                "member would number the classes by itself: make it before the ensemble."
            )
        if not self.getReplace() and self.getSubsample() > 1:
            raise InvalidInput(f"subsample is {self.getSubsample():g}; expected at most 1 without replace.")
        if self.getPartitioned() and not trains_in_task(base):
            raise InvalidInput(
                f"partitioned is True, and the base is a {type(leaf(base)).__name__} that does not train in a task; "
                "expected a PyTorch estimator with numWorkers=1, device='cpu' and a strategy of a gang."
            )
        if self.getVoting() is not None and kind != "classifier":
            warnings.warn(f"voting is for classifiers; that of this {kind} is ignored.", stacklevel=4)
        for name in _DRAWN if self.getPartitioned() else ():
            if self.isSet(name):
                warnings.warn(
                    f"{name} is {self.getOrDefault(name)!r}, which is ignored with partitioned=True.", stacklevel=4
                )
        return base

    def _rule(self, kind: str) -> Rule:
        if kind != "classifier":
            return "mean"
        soft = column(self.getBase(), "probabilityCol") is not None
        voting: Rule = self.getVoting() or ("soft" if soft else "hard")
        return voting

    def _row(self, models: Models, position: int) -> dict[str, Any]:
        """The history's row of a member: its seed, seconds and last figures."""
        last = (getattr(models.models[position], "history", None) or [{}])[-1]
        return {
            "member": models.indices[position],
            "seed": member_seed(self.getSeed(), models.indices[position]),
            **{name: value for name, value in last.items() if name not in ("seconds", "rows_per_second")},
            "seconds": models.seconds[position],
        }

    def bases(self) -> list[Estimator[Any]]:
        """See ``EnsembleParams``."""
        return [self.getBase()] if self.isDefined(self.base) else []

    def with_bases(self: Self, bases: list[Estimator[Any]]) -> Self:
        """See ``EnsembleParams``."""
        return self._set(base=bases[0]) if bases else self

    def getBase(self) -> Any:
        """The base estimator."""
        if not self.isDefined(self.base):
            raise InvalidInput("base is not set; expected it as Bagging(base=...).")
        return self.getOrDefault(self.base)

    def setBase(self: Self, value: Estimator[Any]) -> Self:
        """Set the base estimator."""
        return self._set(base=value)

    def getNumModels(self) -> int:
        """The number of members."""
        return int(self.getOrDefault(self.numModels))

    def setNumModels(self: Self, value: int) -> Self:
        """Set the number of members."""
        return self._set(numModels=value)

    def getSubsample(self) -> float:
        """How often a row is drawn on average."""
        return float(self.getOrDefault(self.subsample))

    def setSubsample(self: Self, value: float) -> Self:
        """Set how often a row is drawn on average."""
        return self._set(subsample=value)

    def getReplace(self) -> bool:
        """Whether a member may be given a row several times."""
        return bool(self.getOrDefault(self.replace))

    def setReplace(self: Self, value: bool) -> Self:
        """Set whether a member may be given a row several times."""
        return self._set(replace=value)

    def getFeatureSubset(self) -> Any:
        """The features that a member sees."""
        return self.getOrDefault(self.featureSubset)

    def setFeatureSubset(self: Self, value: Any) -> Self:
        """Set the features that a member sees."""
        return self._set(featureSubset=value)

    def getVoting(self) -> Any:
        """How classifiers vote."""
        return self.getOrDefault(self.voting)

    def setVoting(self: Self, value: str | None) -> Self:
        """Set how classifiers vote."""
        return self._set(voting=value)

    def getPartitioned(self) -> bool:
        """Whether there is a member for each partition."""
        return bool(self.getOrDefault(self.partitioned))

    def setPartitioned(self: Self, value: bool) -> Self:
        """Set whether there is a member for each partition."""
        return self._set(partitioned=value)


def _classes(base: Estimator[Any], dataset: DataFrame) -> int | None:
    """Classes of all rows: a member that was drawn none of the last one knows of fewer."""
    label = column(base, "labelCol")
    if label is None:
        return None
    ((largest,),) = dataset.agg(F.max(named(label))).collect()
    return None if largest is None else int(largest) + 1
