"""The Params of ensembles, each declared once.

``make stubs`` writes the generated accessors and constructors to ``declarations.pyi``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.ml import Estimator
from pyspark.ml.evaluation import Evaluator
from pyspark.ml.param import Param

from sparkdl.ensembles.resampling.subspace import max_features
from sparkdl.ml.param_declaration import ConstructedParams, Scope, param
from sparkdl.ml.param_types import (
    at_least,
    by_value,
    one_of,
    optional,
    positive,
    to_boolean,
    to_estimator,
    to_estimators,
    to_evaluator,
    to_float,
    to_int,
    to_string,
)
from sparkdl.ml.params import PredictionParams

# These Params do not change a member's weights: they choose how many members, where they are stored, how they combine.
_SAME_MEMBERS = Scope.ALL & ~Scope.MEMBERS


class DisagreementParams(PredictionParams):
    """Output columns of a model with several members."""

    disagreementCol: Param[str] = param("column of how far the members are apart; '' for none", to_string, "")


class MembersParams(ConstructedParams):
    """Params of all ensembles."""

    seed: Param[int] = param("seed of everything that is random: members' own seeds derive from it", to_int, 0)
    runDir: Param[str | None] = param(
        "directory in which finished members are kept, a path or URI that executors see too: none of them is trained "
        "again; None keeps none",
        optional(to_string),
        None,
        scope=_SAME_MEMBERS & ~Scope.BASE,
    )
    idCol: Param[str | None] = param(
        "integer column that is unique, by which rows are drawn; None numbers them as they come",
        optional(to_string),
        None,
    )
    parallelism: Param[int] = param(
        "fits that run at a time, of members that do not train in a task",
        at_least(1, to_int),
        1,
        scope=_SAME_MEMBERS & ~Scope.BASE,
    )
    disagreementCol: Param[str] = param(
        "column of how far members are apart, of every row; '' for none", to_string, "", scope=_SAME_MEMBERS
    )


class BaggingParams(MembersParams):
    """The Params of ``Bagging``."""

    base: Param[Estimator[Any]] = param(
        "the estimator that members are trained by. PyTorch ones of one worker train in tasks of one Spark job, as "
        "many at a time as there are slots; all others as fits of the driver"
    )
    numModels: Param[int] = param("members", at_least(1, to_int), 10, scope=_SAME_MEMBERS & ~Scope.PARTITIONED)
    subsamplingRate: Param[float] = param(
        "how often a row is drawn for a member, on average",
        positive(finite=True),
        1.0,
        scope=Scope.ALL & ~Scope.PARTITIONED,
    )
    bootstrap: Param[bool] = param(
        "whether a member may be given a row several times; where rows repeat, a base with a weightCol is given "
        "weights in place of copies",
        to_boolean,
        True,
        scope=Scope.ALL & ~Scope.PARTITIONED,
    )
    maxFeatures: Param[str | float | int | None] = param(
        "features a member sees: 'sqrt', 'log2', a share or a number; None for all. A PyTorch member sees 0 in place "
        "of those that it does not; others are given a vector without",
        by_value(max_features),
        None,
    )
    voting: Param[str | None] = param(
        "of classifiers: soft or hard; None for soft where there are probabilities",
        optional(one_of(("soft", "hard"))),
        None,
        scope=_SAME_MEMBERS,
    )
    partitioned: Param[bool] = param("a member for each partition, trained on its rows alone", to_boolean, False)


class BoostingParams(MembersParams):
    """The Params of ``Boosting``."""

    base: Param[Estimator[Any]] = param(
        "the estimator that trains members; its label, features and weight columns are those of the boosting. One of "
        "classes must have a weightCol; the users' weights in it are what boosting starts from"
    )
    numModels: Param[int | None] = param(
        "the largest number of members; None for 50 of classes, 100 of numbers",
        optional(at_least(1, to_int)),
        None,
        scope=_SAME_MEMBERS,
    )
    learningRate: Param[float | None] = param(
        "factor of every member's weight; None for 1 of classes, 0.1 of numbers",
        optional(positive("a number above 0, or None", finite=True)),
        None,
    )
    validationIndicatorCol: Param[str | None] = param(
        "boolean column, of numbers only; true keeps a row out of training and in validation; None for none",
        optional(to_string),
        None,
    )
    patience: Param[int | None] = param(
        "members without a smaller loss on validation rows after which it is over, with those up to the best one; "
        "None trains all",
        optional(at_least(1, to_int)),
        None,
        scope=_SAME_MEMBERS,
    )
    tol: Param[float] = param(
        "by how much a loss has to be smaller to count", at_least(0, to_float), 1e-4, scope=_SAME_MEMBERS
    )


class FoldCountParams(MembersParams):
    """Params of ensembles with folds."""

    numFolds: Param[int] = param("parts of the rows; a member is trained without one of them", at_least(2, to_int), 5)


class StackingParams(FoldCountParams):
    """The Params of ``Stacking``; its bases are no Param."""

    class Arguments:
        """Constructor arguments that are no Params."""

        bases: Sequence[Estimator[Any]] | None

    meta: Param[Estimator[Any] | None] = param(
        "what learns from the bases' predictions: an estimator with a featuresCol and a labelCol, which are set to "
        "what it has to read, or a Pipeline that ends in one; None for LogisticRegression() of classes, "
        "LinearRegression() of numbers",
        optional(to_estimator),
        None,
    )
    passthrough: Param[bool] = param(
        "whether the features of the first base are features of meta too", to_boolean, False
    )


class BestOfParams(FoldCountParams):
    """The Params of ``BestOf``."""

    candidates: Param[list[Estimator[Any]]] = param(
        "the estimators of which the best is chosen, of any kind", to_estimators, []
    )
    evaluator: Param[Evaluator | None] = param(
        "says which candidate is good, by its predictions of the rows of a fold", optional(to_evaluator), None
    )
