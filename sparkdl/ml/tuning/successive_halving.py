"""Asynchronous successive halving: which trial runs next, and how far.

A trial runs to a rung, an epoch ``r_k``, and pauses there. With ``eta`` the reduction factor and ``r`` the first rung,

    r_k = r eta^k     while below the epochs R of a whole trial;     the last rung is R.

A free slot promotes a trial, from the top rung down, that is among the best ``floor(n / eta)`` of the ``n`` trials that
have reached its rung, and that was not promoted before. If there is none, a new trial starts: L. Li et al., A system
for massively parallel hyperparameter tuning, MLSys 2020, algorithm 2.

With few trials this rule finishes none of them. So once all trials have started and none runs, the best trial of the
highest rung is promoted until one has reached the last rung.

With several brackets, bracket ``b`` begins at ``r eta^b``, and gets the share of the trials that Hyperband gives it: of
``B`` brackets ``ceil(B eta^(B-1-b) / (B-b))`` parts (L. Li et al., Hyperband, JMLR 2018). A trial's number decides its
bracket, and trials are compared within their bracket.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields, Count, Several
from sparkdl.ml.tuning.trial import Table, Trial, best_first
from sparkdl.training.objective.monitored_value import Mode


@dataclass(frozen=True)
class SuccessiveHalving(CheckedFields):
    """Pauses trials at rungs, and continues the best ones.

    Attributes:
        reduction_factor: of the trials of a rung, one in so many continues; at least 2.
        min_epochs: epochs of the first rung; default: a ninth of the estimator's ``epochs``, rounded up.
        brackets: several begin at later rungs, as in Hyperband, for values that mislead in early epochs.
    """

    reduction_factor: Several = 3
    min_epochs: Count | None = None
    brackets: Count = 1

    def first_rung(self, epochs: int) -> int:
        """The epochs of the first rung; raises InvalidInput if they exceed the epochs of a trial."""
        first = -(-epochs // 9) if self.min_epochs is None else self.min_epochs
        if first > epochs:
            raise InvalidInput(f"min_epochs is {first}, and epochs is {epochs}; expected at most as many.")
        return first

    def rungs(self, epochs: int, bracket: int = 0) -> tuple[int, ...]:
        """The epochs of each rung of a bracket, ascending; the last one is ``epochs``."""
        rung, below = self.first_rung(epochs) * self.reduction_factor**bracket, list[int]()
        while rung < epochs:
            below.append(rung)
            rung *= self.reduction_factor
        return (*below, epochs)

    def bracket(self, number: int) -> int:
        """The bracket of a trial."""
        return self.brackets_of(number + 1)[number]

    def brackets_of(self, trials: int) -> list[int]:
        """The bracket of each of the first ``trials``: each one has its share of them, whatever their number is."""
        eta, last = self.reduction_factor, self.brackets - 1
        parts = [math.ceil(self.brackets * eta ** (last - one) / (last - one + 1)) for one in range(self.brackets)]
        counts, chosen = [0] * self.brackets, list[int]()
        for number in range(1, trials + 1):
            lacking = [part * number - count * sum(parts) for part, count in zip(parts, counts, strict=True)]
            chosen.append(lacking.index(max(lacking)))
            counts[chosen[-1]] += 1
        return chosen


@dataclass(frozen=True)
class PromoteTrial:
    """A paused trial continues to the rung at ``epoch``."""

    trial: Trial
    epoch: int


@dataclass(frozen=True)
class StartTrial:
    """The trial of this number starts, to the rung at ``epoch``."""

    number: int
    epoch: int


@dataclass(frozen=True)
class Wait:
    """Nothing to do until a running trial ends its rung."""


@dataclass(frozen=True)
class Finish:
    """The search is over."""


Step = PromoteTrial | StartTrial | Wait | Finish


@dataclass(frozen=True)
class Schedule:
    """What decides a step, beside the table.

    Attributes:
        trials: trials of the search.
        epochs: epochs of a whole trial.
        mode: whether a lower or a higher value is better.
        halving: pauses trials; None runs every trial to its end.
    """

    trials: int
    epochs: int
    mode: Mode
    halving: SuccessiveHalving | None = None

    @property
    def pauses(self) -> bool:
        """Whether trials pause."""
        return self.halving is not None

    def rungs(self, number: int) -> tuple[int, ...]:
        """The rungs of a trial."""
        if self.halving is None:
            return (self.epochs,)
        return self.halving.rungs(self.epochs, self.halving.bracket(number))


def next_step(table: Table, schedule: Schedule, *, ends: bool = False) -> Step:
    """The next step of a free slot; pure in the table. With ``ends`` no trial starts, and none continues."""
    running = any(trial.state == "running" for trial in table)
    if ends:
        return Wait() if running else Finish()
    if promoted := _promotable(table, schedule):
        return promoted
    if len(table) < schedule.trials:
        return StartTrial(len(table), schedule.rungs(len(table))[0])
    return Wait() if running else _last(table, schedule)


def _promotable(table: Table, schedule: Schedule) -> PromoteTrial | None:
    if schedule.halving is None:
        return None
    brackets = schedule.halving.brackets_of(len(table))
    for bracket in range(schedule.halving.brackets):
        rungs = schedule.halving.rungs(schedule.epochs, bracket)
        trials = [trial for trial in table if brackets[trial.number] == bracket]
        for rung, above in reversed([*itertools.pairwise(rungs)]):
            # A trial that failed above has lost; in its rungs below it counts as before.
            ranked = best_first(trials, rung, schedule.mode)
            failed = sum(trial.state == "failed" and trial.rung == rung for trial in trials)
            best = ranked[: (len(ranked) + failed) // schedule.halving.reduction_factor]
            for trial in best:
                if trial.state == "paused" and trial.rung == rung and math.isfinite(trial.values[rung]):
                    return PromoteTrial(trial, above)
    return None


def _last(table: Table, schedule: Schedule) -> Step:
    """Once nothing runs: promote the best trial of the highest rung, unless a trial has reached the last one."""
    if any(schedule.epochs in trial.values and math.isfinite(trial.values[schedule.epochs]) for trial in table):
        return Finish()
    paused = [trial for trial in table if trial.state == "paused" and math.isfinite(trial.values[trial.rung])]
    if not paused:
        return Finish()
    highest = max(trial.rung for trial in paused)
    best = best_first([trial for trial in paused if trial.rung == highest], highest, schedule.mode)[0]
    rungs = schedule.rungs(best.number)
    return PromoteTrial(best, rungs[rungs.index(highest) + 1])
