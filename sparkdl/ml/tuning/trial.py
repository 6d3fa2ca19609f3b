"""A trial: a fit with suggested values of hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from sparkdl.io.fields import CheckedFields, Natural, NonNegative, one_of
from sparkdl.training.objective.monitored_value import Mode

STATES = ("running", "paused", "finished", "failed")
SAMPLERS = ("grid", "random", "tpe", "gp")
"""What draws the values of a trial, by name."""


@dataclass(frozen=True)
class Trial(CheckedFields):
    """A row of the table of trials, with plain values.

    Attributes:
        number: the number of the trial, from 0, in the order of the starts.
        params: by key of the search space, a number of a range, or the index of a choice in its list.
        state: ``"running"``, ``"paused"`` at a rung, ``"finished"``, or ``"failed"``.
        values: the value at each rung that it has reached, by the rung's epoch.
        rung: the epoch of the rung that it runs to, or ran to last.
        history: the monitored value of each epoch.
        seconds: seconds of its rungs.
        error: why it failed; default: it did not.
        sampler_state: what the sampler keeps of this ``"trial"``, and of the ``"study"`` after it; default: nothing.
    """

    number: Natural
    params: Mapping[str, Any] = field(default_factory=dict)
    state: Annotated[str, one_of(STATES)] = "running"
    values: Mapping[int, float] = field(default_factory=dict)
    rung: Natural = 0
    history: Sequence[Any] = ()  # floats; NaN too
    seconds: NonNegative = 0.0
    error: str | None = None
    sampler_state: Mapping[str, Any] = field(default_factory=dict)

    @property
    def value(self) -> float | None:
        """The value at the last rung that it has reached; None before the first, and for NaN."""
        last = self.values[max(self.values)] if self.values else math.nan
        return last if math.isfinite(last) else None


Table = Sequence[Trial]
"""The trials of a search, by number."""


def best_first(trials: Table, rung: int, mode: Mode) -> list[Trial]:
    """The trials with a value at a rung, the best first; NaN is last, and of equal values the first trial wins."""

    def key(trial: Trial) -> tuple[bool, float]:
        value = trial.values[rung]
        return not math.isfinite(value), value if mode == "min" else -value

    return sorted((trial for trial in trials if rung in trial.values), key=lambda trial: (*key(trial), trial.number))


def best_trial(trials: Table, mode: Mode) -> Trial | None:
    """The best of the trials that have reached the highest rung with a number; None if there is none."""
    valued = [trial for trial in trials if trial.state != "failed" and trial.value is not None]
    rung = max((max(trial.values) for trial in valued), default=0)
    return next(iter(best_first(valued, rung, mode)), None)
