"""A trial: a fit with suggested values of hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from sparkdl.io.fields import CheckedFields, Natural, one_of
from sparkdl.training.objective.monitored_value import Mode

STATES = ("running", "paused", "finished", "failed")


@dataclass(frozen=True)
class Trial(CheckedFields):
    """A row of the table of trials.

    Attributes:
        number: the number of the trial, from 0, in the order of the starts.
        params: the suggested values, by key of the search space.
        state: ``"running"``, ``"paused"`` at a rung, ``"finished"``, or ``"failed"``.
        values: the value at each rung that it has reached, by the rung's epoch.
        rung: the epoch of the rung that it runs to, or ran to last.
    """

    number: Natural
    params: Mapping[str, Any] = field(default_factory=dict)
    state: Annotated[str, one_of(STATES)] = "running"
    values: Mapping[int, float] = field(default_factory=dict)
    rung: Natural = 0


Table = Sequence[Trial]
"""The trials of a search, by number."""


def best_first(trials: Table, rung: int, mode: Mode) -> list[Trial]:
    """The trials with a value at a rung, the best first; NaN is last, and of equal values the first trial wins."""

    def key(trial: Trial) -> tuple[bool, float]:
        value = trial.values[rung]
        return not math.isfinite(value), value if mode == "min" else -value

    return sorted((trial for trial in trials if rung in trial.values), key=lambda trial: (*key(trial), trial.number))
