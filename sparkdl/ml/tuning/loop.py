"""The loop of a search: ``parallelism`` threads of the driver ask for a step, run it, and write the trial's row.

    pending trials of an earlier driver -> next_step -> suggest -> fits.run -> row -> next_step ...

A trial that fails is a row with its error, and the search continues. It ends with the error if a stop was requested,
the user cancelled a job, slots are missing, another search took over the directory, or Spark is gone.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sparkdl.cluster.shutdown import POLL, stop_requested, stopped
from sparkdl.errors import ClusterUnavailable, Fenced, InvalidInput, SparkdlError, Stopped, WorkerFailed
from sparkdl.ml.model import TorchModel
from sparkdl.ml.tuning.samplers import SuggestionRule
from sparkdl.ml.tuning.successive_halving import Finish, PromoteTrial, Schedule, StartTrial, Wait, next_step
from sparkdl.ml.tuning.trial import Trial, best_trial
from sparkdl.ml.tuning.trial_fits import RungResult, TrialFits
from sparkdl.ml.tuning.trial_table import TrialTable
from sparkdl.spark.error_messages import cancellation
from sparkdl.training.objective.monitored_value import monitored

logger = logging.getLogger(__name__)


@dataclass
class SearchLoop:
    """Runs trials until the search is finished.

    Attributes:
        rule: suggests values.
        schedule: decides on the steps.
        fits: trains trials.
        table: the files of the search; None keeps the trials in memory.
        monitor: the column of the history that trials compare; None for the loss.
        failures: if so many first trials all fail, the search raises the first error.
        deadline: the time of ``time.monotonic`` after which no trial begins, and none is promoted.
        notify: called with the schedule, a trial after each of its rungs, and all trials.
        call_spark: raises if Spark is gone, which is no failure of a trial.
        trials: the trials of an earlier driver, and then all, by number.
        model: the best trial's model, if the trials return their models.
    """

    rule: SuggestionRule
    schedule: Schedule
    fits: TrialFits
    table: TrialTable | None
    monitor: str | None
    failures: int
    deadline: float
    notify: Callable[[Schedule, Trial, list[Trial]], None]
    call_spark: Callable[[], object]
    trials: dict[int, Trial] = field(default_factory=dict)
    model: TorchModel | None = None

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._error: BaseException | None = None  # ends all threads
        self._first: Exception | None = None  # error of a trial
        numbers = range(max(self.trials, default=-1) + 1)
        self._pending = [one for one in numbers if one not in self.trials or self.trials[one].state == "running"]

    def stop(self) -> None:
        """Let no other trial begin, as if a thread had failed; does nothing after the end."""
        with self._changed:
            self._error = self._error or Stopped("the search was interrupted.")

    @property
    def rows(self) -> list[Trial]:
        """The trials, by number."""
        return [self.trials[number] for number in sorted(self.trials)]

    def __call__(self, _: int = 0) -> None:
        """Run steps until the search is finished; each thread calls it once. A failed trial's row has the error."""
        try:
            while (trial := self._next()) is not None:
                self._end(*self._trained(trial))
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
            raise

    def best(self) -> Trial:
        """The best trial of a finished search; raises the first error, or InvalidInput, if no trial has a value."""
        best = best_trial(self.rows, self.schedule.mode)
        if best is not None:
            return best
        failed = next((trial.error for trial in self.rows if trial.error is not None), None)
        if failed is not None:
            raise self._first or WorkerFailed(failed)
        if not self.rows:
            raise InvalidInput("no trial began before maxSeconds; set a larger number.")
        raise InvalidInput(
            f"{self.monitor or 'the loss'} of every trial is NaN; expected a number. Lower learningRate in paramSpace, "
            "or set maxGradNorm."
        )

    def _next(self) -> Trial | None:
        with self._changed:
            while self._error is None:
                if stop_requested() is not None:
                    raise stopped("had not finished its trials", "continues the search")
                step = self._step()
                if isinstance(step, Finish):
                    return None
                if isinstance(step, Trial):
                    self._put(step)
                    return step
                self._changed.wait(POLL)
            return None

    def _step(self) -> Trial | Wait | Finish:
        ends = time.monotonic() > self.deadline
        while self._pending:
            number = self._pending.pop(0)
            if number in self.trials:
                return self.trials[number]
            if not ends and (trial := self._started(StartTrial(number, self.schedule.rungs(number)[0]))) is not None:
                return trial
        step = next_step(self.rows, self.schedule, ends=ends)
        if isinstance(step, PromoteTrial):
            return replace(step.trial, state="running", rung=step.epoch)
        if isinstance(step, StartTrial):
            if (trial := self._started(step)) is not None:
                return trial
            logger.info("the search space has no other values after %d trials.", len(self.trials))
            self.schedule = replace(self.schedule, trials=len(self.trials))
            return self._step()
        return step

    def _started(self, step: StartTrial) -> Trial | None:
        trial = self.rule.suggest(self.rows, step.number)
        return None if trial is None else replace(trial, rung=step.epoch)

    def _trained(self, trial: Trial) -> tuple[Trial, RungResult | None]:
        start = time.monotonic()
        try:
            result = self.fits.run(trial)
        except (ClusterUnavailable, Fenced, Stopped):
            raise
        except SparkdlError as error:
            if (ended := cancellation(error)) is not None:
                raise ended from error
            self.call_spark()
            self._first = self._first or error
            seconds = trial.seconds + time.monotonic() - start
            return replace(trial, state="failed", seconds=seconds, error=f"{type(error).__name__}: {error}"), None
        history = [monitored(row, self.monitor) for row in result.history]
        value = math.nan if result.epoch is None else history[result.epoch - 1]
        rungs = [rung for rung in self.schedule.rungs(trial.number) if rung == trial.rung or result.stopped]
        values = {**trial.values, **{rung: value for rung in rungs if rung >= trial.rung}}
        finished = result.stopped or trial.rung >= self.schedule.epochs
        ended_trial = replace(trial, state="finished" if finished else "paused", values=values, history=history)
        return replace(ended_trial, seconds=trial.seconds + result.seconds), result

    def _end(self, trial: Trial, result: RungResult | None) -> None:
        with self._changed:
            self._put(trial)
            if result is not None and result.model is not None and best_trial(self.rows, self.schedule.mode) == trial:
                self.model = result.model
            self.notify(self.schedule, trial, self.rows)
            self._changed.notify_all()
            first = self.rows[: self.failures]
            all_failed = len(first) == self.failures and all(row.state == "failed" for row in first)
            if self._first is not None and all_failed and not any(row.values for row in self.rows):
                raise self._first

    def _put(self, trial: Trial) -> None:
        if self.table is not None:
            self.table.write(trial)
        self.trials[trial.number] = trial
