"""The Params of ensembles, each declared once.

``make stubs`` writes the generated accessors and constructors to ``declarations.pyi``.
"""

from __future__ import annotations

from typing import Any

from pyspark.ml import Estimator
from pyspark.ml.evaluation import Evaluator
from pyspark.ml.param import Param
from pyspark.ml.param.shared import HasParallelism, HasSeed, HasValidationIndicatorCol

from sparkdl.ensembles.resampling.subspace import max_features
from sparkdl.io.fields import Positive
from sparkdl.ml.param_declaration import ConstructedParams, Scope, ValidatedParams, param
from sparkdl.ml.param_types import (
    by_value,
    number,
    one_of,
    to_amount,
    to_boolean,
    to_count,
    to_estimator,
    to_estimators,
    to_evaluator,
    to_float,
    to_labels,
    to_path,
    to_seed,
    to_several,
    to_string,
)
from sparkdl.ml.params import PredictionParams

# These Params do not change a member's weights: they choose how many members, where they are stored, how they combine.
_SAME_MEMBERS = Scope.ALL & ~Scope.MEMBERS


class LabelParams(ValidatedParams):
    """The label column of a fitted ensemble."""

    labelCol: Param[str | list[str] | None] = param(
        "label column that evaluate() compares with the predictions; None takes the members' label column",
        to_labels,
        None,
    )


class DisagreementParams(PredictionParams):
    """Output columns of a model with several members."""

    disagreementCol: Param[str] = param("output column for the disagreement of the members; '' for none", to_string, "")


class MembersParams(ConstructedParams, HasSeed, HasParallelism):
    """Params of all ensembles."""

    seed: Param[int] = param("seed from which the seeds of all members derive", to_seed, 0)
    runDir: Param[str | None] = param(
        "directory that stores finished members, so that no fit trains them again; a path or URI that executors see "
        "too. With None no member is stored",
        to_path,
        None,
        scope=_SAME_MEMBERS & ~Scope.BASE,
    )
    idCol: Param[str | None] = param(
        "unique integer column that decides the draws of rows; with None, Spark numbers the rows", to_string, None
    )
    parallelism: Param[int] = param(
        "number of fits that the driver runs at a time; members that train in tasks ignore it",
        to_count,
        1,
        scope=_SAME_MEMBERS & ~Scope.BASE,
    )
    disagreementCol: Param[str] = param(
        "output column for the disagreement of the members; '' for none", to_string, "", scope=_SAME_MEMBERS
    )


class BaggingParams(MembersParams):
    """The Params of ``Bagging``."""

    base: Param[Estimator[Any]] = param(
        "estimator of the members. PyTorch estimators with one worker train in tasks of one Spark job, as many at a "
        "time as there are slots. The driver fits all others"
    )
    numModels: Param[int] = param("number of members", to_count, 10, scope=_SAME_MEMBERS & ~Scope.PARTITIONED)
    subsamplingRate: Param[float] = param(
        "mean number of times that a member gets a row",
        number(Positive, to_float),
        1.0,
        scope=Scope.ALL & ~Scope.PARTITIONED,
    )
    bootstrap: Param[bool] = param(
        "whether a member may get a row several times. If rows repeat, a base with a weightCol gets weights instead of "
        "copies, but not a network, whose epoch has as many rows as are drawn",
        to_boolean,
        True,
        scope=Scope.ALL & ~Scope.PARTITIONED,
    )
    maxFeatures: Param[str | float | int | None] = param(
        "features that a member sees: 'sqrt', 'log2', a share or a number; with None all. A PyTorch member gets 0 for "
        "hidden features, other members get a shorter vector",
        by_value(max_features),
        None,
    )
    voting: Param[str | None] = param(
        "'soft' or 'hard', for classifiers; None takes 'soft' if the base has probabilities, else 'hard'",
        one_of(("soft", "hard")),
        None,
        scope=_SAME_MEMBERS,
    )
    oobScore: Param[bool] = param(
        "whether fit computes the out-of-bag score: the accuracy, or R2 of numbers, of predictions of training rows by "
        "the members that did not draw them",
        to_boolean,
        False,
        scope=_SAME_MEMBERS & ~Scope.BASE,
    )
    partitioned: Param[bool] = param("whether each partition trains one member on its own rows", to_boolean, False)


class BoostingParams(MembersParams, HasValidationIndicatorCol):
    """The Params of ``Boosting``."""

    base: Param[Estimator[Any]] = param(
        "estimator of the members; boosting uses its label, features and weight columns. A classifier must have a "
        "weightCol; boosting starts from the weights in it"
    )
    numModels: Param[int | None] = param(
        "largest number of members; None takes 50 classifiers or 100 regressors", to_count, None, scope=_SAME_MEMBERS
    )
    learningRate: Param[float | None] = param(
        "factor of each member's weight; None takes 1 with classifiers, 0.1 with regressors",
        number(Positive | None, to_float),
        None,
    )
    validationIndicatorCol: Param[str | None] = param(
        "boolean column, for regressors; true marks a validation row, which members do not see; None marks no row",
        to_string,
        None,
    )
    patience: Param[int | None] = param(
        "number of members without a smaller validation loss after which boosting stops and keeps the members up to "
        "the best; None trains all",
        to_count,
        None,
        scope=_SAME_MEMBERS,
    )
    tol: Param[float] = param(
        "smallest decrease of the validation loss that counts", to_amount, 1e-4, scope=_SAME_MEMBERS
    )


class FoldCountParams(MembersParams):
    """Params of ensembles with folds."""

    numFolds: Param[int] = param("number of folds; a member trains without one of them", to_several, 5)


class StackingParams(FoldCountParams):
    """The Params of ``Stacking``."""

    bases: Param[list[Estimator[Any]]] = param(
        "estimators, all classifiers or all regressors, with the same labelCol", to_estimators, []
    )
    meta: Param[Estimator[Any] | None] = param(
        "estimator that learns from the predictions of the bases, or a Pipeline that ends in one; fit sets its feature "
        "and label columns. None takes LogisticRegression() with classifiers, LinearRegression() with regressors",
        to_estimator,
        None,
    )
    passthrough: Param[bool] = param("whether meta also gets the features of the first base", to_boolean, False)


class BestOfParams(FoldCountParams):
    """The Params of ``BestOf``."""

    candidates: Param[list[Estimator[Any]]] = param(
        "estimators from which fit selects the best, of any kind", to_estimators, []
    )
    evaluator: Param[Evaluator | None] = param(
        "evaluator that measures the predictions of a candidate on the rows of a fold", to_evaluator, None
    )
