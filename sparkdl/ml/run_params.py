"""The Params that say how long a run goes on, what it survives, and what is told of it."""

from __future__ import annotations

import warnings
from typing import Any

from pyspark.ml.param import TypeConverters

from sparkdl.checkpoint.interval import Every
from sparkdl.ml.params import CheckedParams, Self, at_least, one_of, optional, param
from sparkdl.telemetry.log_forwarding import LEVELS


def _every(value: Any) -> int | str:
    if value != "never":
        Every.of(value)
    checked: int | str = value
    return checked


class RunParams(CheckedParams):
    """How long a run goes on, what it survives, and what is told of it."""

    checkpointEvery = param(
        "checkpointEvery",
        "steps between two checkpoints, or '2 epochs', '30 seconds', 'auto', 'never'",
        _every,
    )
    maxRestarts = param(
        "maxRestarts",
        "times that a gang which failed starts again",
        at_least(0, TypeConverters.toInt, "maxRestarts"),
    )
    minWorkers = param(
        "minWorkers",
        "members with which a gang starts where there are no slots for all; None for numWorkers",
        optional(at_least(1, TypeConverters.toInt, "minWorkers")),
    )
    elasticWait = param(
        "elasticWait",
        "seconds to wait for the slots of all members before fewer start",
        at_least(0, TypeConverters.toFloat, "elasticWait"),
    )
    maxRounds = param(
        "maxRounds",
        "largest number of rounds of a strategy that trains in rounds; None for as many as it takes",
        optional(at_least(1, TypeConverters.toInt, "maxRounds")),
    )
    timeBudget = param(
        "timeBudget",
        "seconds after which a strategy that trains in rounds begins no other; None for no limit",
        optional(at_least(0, TypeConverters.toFloat, "timeBudget")),
    )
    events = param(
        "events",
        "whether members tell how far they are and what their time goes into; False leaves signs of life alone",
        TypeConverters.toBoolean,
    )
    logLevel = param(
        "logLevel",
        "level from which on members' log lines are shown on the driver: debug, info, warning, error or off",
        one_of(LEVELS, "logLevel"),
    )

    def warn_of_unused(self, names: tuple[str, ...]) -> None:
        """Warn of those of these Params that are set to something, and that this run makes no use of."""
        for name in names:
            if self.isSet(name) and self.getOrDefault(name) != self._defaultParamMap[self.getParam(name)]:
                warnings.warn(
                    f"{name} is {self.getOrDefault(name)!r}, which a fit with {self.getOrDefault('strategy')!r} makes "
                    "no use of: it is ignored.",
                    stacklevel=5,
                )

    def getCheckpointEvery(self) -> int | str:
        """The distance between checkpoints."""
        value: int | str = self.getOrDefault(self.checkpointEvery)
        return value

    def setCheckpointEvery(self: Self, value: int | str) -> Self:
        """Set the distance between checkpoints."""
        return self._set(checkpointEvery=value)

    def getMaxRestarts(self) -> int:
        """The number of restarts."""
        return int(self.getOrDefault(self.maxRestarts))

    def setMaxRestarts(self: Self, value: int) -> Self:
        """Set the number of restarts."""
        return self._set(maxRestarts=value)

    def getMinWorkers(self) -> int | None:
        """The fewest members."""
        value: int | None = self.getOrDefault(self.minWorkers)
        return value

    def setMinWorkers(self: Self, value: int | None) -> Self:
        """Set the fewest members."""
        return self._set(minWorkers=value)

    def getElasticWait(self) -> float:
        """The seconds before fewer members start."""
        return float(self.getOrDefault(self.elasticWait))

    def setElasticWait(self: Self, value: float) -> Self:
        """Set the seconds before fewer members start."""
        return self._set(elasticWait=value)

    def getMaxRounds(self) -> int | None:
        """The largest number of rounds."""
        value: int | None = self.getOrDefault(self.maxRounds)
        return value

    def setMaxRounds(self: Self, value: int | None) -> Self:
        """Set the largest number of rounds."""
        return self._set(maxRounds=value)

    def getEvents(self) -> bool:
        """Whether members tell of themselves."""
        return bool(self.getOrDefault(self.events))

    def setEvents(self: Self, value: bool) -> Self:
        """Set whether members tell of themselves."""
        return self._set(events=value)

    def getLogLevel(self) -> str:
        """The level of members' logs on the driver."""
        return str(self.getOrDefault(self.logLevel))

    def setLogLevel(self: Self, value: str) -> Self:
        """Set the level of members' logs on the driver."""
        return self._set(logLevel=value)

    def getTimeBudget(self) -> float | None:
        """The seconds of the time budget."""
        value: float | None = self.getOrDefault(self.timeBudget)
        return value

    def setTimeBudget(self: Self, value: float | None) -> Self:
        """Set the seconds of the time budget."""
        return self._set(timeBudget=value)
