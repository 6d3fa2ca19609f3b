# mypy: disable-error-code="assignment,override"
# Params of pyspark.ml's mixins may be None here, and labelCol a list.
"""Generated from ``sparkdl.ensembles.declarations`` by ``docs.param_stubs``; do not edit."""

from __future__ import annotations

from typing import Any

from pyspark.ml import Estimator
from pyspark.ml.evaluation import Evaluator
from pyspark.ml.param import Param
from pyspark.ml.param.shared import HasParallelism, HasSeed, HasValidationIndicatorCol
from typing_extensions import Self

from sparkdl.ml.param_declaration import ConstructedParams, ValidatedParams
from sparkdl.ml.params import PredictionParams

class LabelParams(ValidatedParams):
    labelCol: Param[str | list[str] | None]
    def getLabelCol(self) -> str | list[str] | None: ...
    def setLabelCol(self, value: str | list[str] | None) -> Self: ...

class DisagreementParams(PredictionParams):
    disagreementCol: Param[str]
    def getDisagreementCol(self) -> str: ...
    def setDisagreementCol(self, value: str) -> Self: ...

class MembersParams(ConstructedParams, HasSeed, HasParallelism):
    seed: Param[int]
    runDir: Param[str | None]
    idCol: Param[str | None]
    parallelism: Param[int]
    disagreementCol: Param[str]
    def getSeed(self) -> int: ...
    def setSeed(self, value: int) -> Self: ...
    def getRunDir(self) -> str | None: ...
    def setRunDir(self, value: str | None) -> Self: ...
    def getIdCol(self) -> str | None: ...
    def setIdCol(self, value: str | None) -> Self: ...
    def getParallelism(self) -> int: ...
    def setParallelism(self, value: int) -> Self: ...
    def getDisagreementCol(self) -> str: ...
    def setDisagreementCol(self, value: str) -> Self: ...

class BaggingParams(MembersParams):
    base: Param[Estimator[Any]]
    numModels: Param[int]
    subsamplingRate: Param[float]
    bootstrap: Param[bool]
    maxFeatures: Param[str | float | int | None]
    voting: Param[str | None]
    oobScore: Param[bool]
    partitioned: Param[bool]
    def __init__(
        self,
        *,
        base: Estimator[Any] | None = None,
        numModels: int = 10,
        subsamplingRate: float = 1.0,
        bootstrap: bool = True,
        maxFeatures: str | float | int | None = None,
        voting: str | None = None,
        oobScore: bool = False,
        partitioned: bool = False,
        seed: int = 0,
        runDir: str | None = None,
        idCol: str | None = None,
        parallelism: int = 1,
        disagreementCol: str = "",
    ) -> None: ...
    def setParams(
        self,
        *,
        base: Estimator[Any] | None = None,
        numModels: int = 10,
        subsamplingRate: float = 1.0,
        bootstrap: bool = True,
        maxFeatures: str | float | int | None = None,
        voting: str | None = None,
        oobScore: bool = False,
        partitioned: bool = False,
        seed: int = 0,
        runDir: str | None = None,
        idCol: str | None = None,
        parallelism: int = 1,
        disagreementCol: str = "",
    ) -> Self: ...
    def getBase(self) -> Estimator[Any]: ...
    def setBase(self, value: Estimator[Any]) -> Self: ...
    def getNumModels(self) -> int: ...
    def setNumModels(self, value: int) -> Self: ...
    def getSubsamplingRate(self) -> float: ...
    def setSubsamplingRate(self, value: float) -> Self: ...
    def getBootstrap(self) -> bool: ...
    def setBootstrap(self, value: bool) -> Self: ...
    def getMaxFeatures(self) -> str | float | int | None: ...
    def setMaxFeatures(self, value: str | float | int | None) -> Self: ...
    def getVoting(self) -> str | None: ...
    def setVoting(self, value: str | None) -> Self: ...
    def getOobScore(self) -> bool: ...
    def setOobScore(self, value: bool) -> Self: ...
    def getPartitioned(self) -> bool: ...
    def setPartitioned(self, value: bool) -> Self: ...

class BoostingParams(MembersParams, HasValidationIndicatorCol):
    base: Param[Estimator[Any]]
    numModels: Param[int | None]
    learningRate: Param[float | None]
    validationIndicatorCol: Param[str | None]
    patience: Param[int | None]
    tol: Param[float]
    def __init__(
        self,
        *,
        base: Estimator[Any] | None = None,
        numModels: int | None = None,
        learningRate: float | None = None,
        validationIndicatorCol: str | None = None,
        patience: int | None = None,
        tol: float = 0.0001,
        seed: int = 0,
        runDir: str | None = None,
        idCol: str | None = None,
        parallelism: int = 1,
        disagreementCol: str = "",
    ) -> None: ...
    def setParams(
        self,
        *,
        base: Estimator[Any] | None = None,
        numModels: int | None = None,
        learningRate: float | None = None,
        validationIndicatorCol: str | None = None,
        patience: int | None = None,
        tol: float = 0.0001,
        seed: int = 0,
        runDir: str | None = None,
        idCol: str | None = None,
        parallelism: int = 1,
        disagreementCol: str = "",
    ) -> Self: ...
    def getBase(self) -> Estimator[Any]: ...
    def setBase(self, value: Estimator[Any]) -> Self: ...
    def getNumModels(self) -> int | None: ...
    def setNumModels(self, value: int | None) -> Self: ...
    def getLearningRate(self) -> float | None: ...
    def setLearningRate(self, value: float | None) -> Self: ...
    def getValidationIndicatorCol(self) -> str | None: ...
    def setValidationIndicatorCol(self, value: str | None) -> Self: ...
    def getPatience(self) -> int | None: ...
    def setPatience(self, value: int | None) -> Self: ...
    def getTol(self) -> float: ...
    def setTol(self, value: float) -> Self: ...

class FoldCountParams(MembersParams):
    numFolds: Param[int]
    def getNumFolds(self) -> int: ...
    def setNumFolds(self, value: int) -> Self: ...

class StackingParams(FoldCountParams):
    bases: Param[list[Estimator[Any]]]
    meta: Param[Estimator[Any] | None]
    passthrough: Param[bool]
    def __init__(
        self,
        *,
        bases: list[Estimator[Any]] = ...,
        meta: Estimator[Any] | None = None,
        passthrough: bool = False,
        numFolds: int = 5,
        seed: int = 0,
        runDir: str | None = None,
        idCol: str | None = None,
        parallelism: int = 1,
        disagreementCol: str = "",
    ) -> None: ...
    def setParams(
        self,
        *,
        bases: list[Estimator[Any]] = ...,
        meta: Estimator[Any] | None = None,
        passthrough: bool = False,
        numFolds: int = 5,
        seed: int = 0,
        runDir: str | None = None,
        idCol: str | None = None,
        parallelism: int = 1,
        disagreementCol: str = "",
    ) -> Self: ...
    def getBases(self) -> list[Estimator[Any]]: ...
    def setBases(self, value: list[Estimator[Any]]) -> Self: ...
    def getMeta(self) -> Estimator[Any] | None: ...
    def setMeta(self, value: Estimator[Any] | None) -> Self: ...
    def getPassthrough(self) -> bool: ...
    def setPassthrough(self, value: bool) -> Self: ...

class BestOfParams(FoldCountParams):
    candidates: Param[list[Estimator[Any]]]
    evaluator: Param[Evaluator | None]
    def __init__(
        self,
        *,
        candidates: list[Estimator[Any]] = ...,
        evaluator: Evaluator | None = None,
        numFolds: int = 5,
        seed: int = 0,
        runDir: str | None = None,
        idCol: str | None = None,
        parallelism: int = 1,
        disagreementCol: str = "",
    ) -> None: ...
    def setParams(
        self,
        *,
        candidates: list[Estimator[Any]] = ...,
        evaluator: Evaluator | None = None,
        numFolds: int = 5,
        seed: int = 0,
        runDir: str | None = None,
        idCol: str | None = None,
        parallelism: int = 1,
        disagreementCol: str = "",
    ) -> Self: ...
    def getCandidates(self) -> list[Estimator[Any]]: ...
    def setCandidates(self, value: list[Estimator[Any]]) -> Self: ...
    def getEvaluator(self) -> Evaluator | None: ...
    def setEvaluator(self, value: Evaluator | None) -> Self: ...
