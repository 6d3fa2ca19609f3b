# mypy: disable-error-code="assignment,override"
# Params of pyspark.ml's mixins may be None here, and labelCol a list.
"""Generated from ``sparkdl.ml.tuning.params`` by ``docs.param_stubs``; do not edit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.ml import Estimator
from pyspark.ml.param import Param
from pyspark.ml.param.shared import HasSeed
from typing_extensions import Self

from sparkdl.ml.param_declaration import ConstructedParams
from sparkdl.ml.tuning.number_range import Range
from sparkdl.ml.tuning.successive_halving import SuccessiveHalving

class TunerParams(ConstructedParams, HasSeed):
    estimator: Param[Estimator[Any]]
    paramSpace: Param[dict[Any, Range | list[Any] | dict[str, Any]]]
    numTrials: Param[int]
    sampler: Param[str | Callable[[int], Any]]
    earlyTermination: Param[SuccessiveHalving | None]
    parallelism: Param[int | None]
    maxSeconds: Param[float | None]
    seed: Param[int]
    runDir: Param[str | None]
    trackers: Param[list[Any]]
    telemetry: Param[bool]
    def __init__(
        self,
        *,
        estimator: Estimator[Any] | None = None,
        paramSpace: dict[Any, Range | list[Any] | dict[str, Any]] | None = None,
        numTrials: int = 20,
        sampler: str | Callable[[int], Any] = "tpe",
        earlyTermination: SuccessiveHalving | None = ...,
        parallelism: int | None = None,
        maxSeconds: float | None = None,
        seed: int = 0,
        runDir: str | None = None,
        trackers: list[Any] = ...,
        telemetry: bool = True,
    ) -> None: ...
    def setParams(
        self,
        *,
        estimator: Estimator[Any] | None = None,
        paramSpace: dict[Any, Range | list[Any] | dict[str, Any]] | None = None,
        numTrials: int = 20,
        sampler: str | Callable[[int], Any] = "tpe",
        earlyTermination: SuccessiveHalving | None = ...,
        parallelism: int | None = None,
        maxSeconds: float | None = None,
        seed: int = 0,
        runDir: str | None = None,
        trackers: list[Any] = ...,
        telemetry: bool = True,
    ) -> Self: ...
    def getEstimator(self) -> Estimator[Any]: ...
    def setEstimator(self, value: Estimator[Any]) -> Self: ...
    def getParamSpace(self) -> dict[Any, Range | list[Any] | dict[str, Any]]: ...
    def setParamSpace(self, value: dict[Any, Range | list[Any] | dict[str, Any]]) -> Self: ...
    def getNumTrials(self) -> int: ...
    def setNumTrials(self, value: int) -> Self: ...
    def getSampler(self) -> str | Callable[[int], Any]: ...
    def setSampler(self, value: str | Callable[[int], Any]) -> Self: ...
    def getEarlyTermination(self) -> SuccessiveHalving | None: ...
    def setEarlyTermination(self, value: SuccessiveHalving | None) -> Self: ...
    def getParallelism(self) -> int | None: ...
    def setParallelism(self, value: int | None) -> Self: ...
    def getMaxSeconds(self) -> float | None: ...
    def setMaxSeconds(self, value: float | None) -> Self: ...
    def getSeed(self) -> int: ...
    def setSeed(self, value: int) -> Self: ...
    def getRunDir(self) -> str | None: ...
    def setRunDir(self, value: str | None) -> Self: ...
    def getTrackers(self) -> list[Any]: ...
    def setTrackers(self, value: list[Any]) -> Self: ...
    def getTelemetry(self) -> bool: ...
    def setTelemetry(self, value: bool) -> Self: ...
