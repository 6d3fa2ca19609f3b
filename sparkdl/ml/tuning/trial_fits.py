"""How a trial trains to a rung: in a task, or on a gang of its own.

Both resume from the checkpoint of the trial's last rung, and pause at the next one. Without a shared directory, a trial
trains to its end at once and returns its weights.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from pyspark.sql import DataFrame

from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.cluster.tasks import TaskRunner
from sparkdl.io.merged_weights import merge_weights
from sparkdl.ml.derived_columns.class_weights import ClassWeights
from sparkdl.ml.derived_columns.rows import DerivedColumns
from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.ml.fit_monitor import FitMonitor
from sparkdl.ml.gang_fit import merged, part_folder
from sparkdl.ml.model import TorchModel
from sparkdl.ml.report import Report
from sparkdl.ml.run import Run, own_checkpoints
from sparkdl.ml.trials.single_worker import with_one_worker
from sparkdl.ml.trials.task_fit import model_of, packed_rows
from sparkdl.ml.tuning.rung import RungWork, TrialCheckpoints
from sparkdl.ml.tuning.search_space import SearchSpace, apply
from sparkdl.ml.tuning.trial import Trial
from sparkdl.ml.tuning.trial_table import TrialTable
from sparkdl.training.spec import TrainingResult


@dataclass(frozen=True)
class RungResult:
    """What a trial has after a rung.

    Attributes:
        history: a row for each epoch so far.
        seconds: seconds of this rung.
        keeps_best: whether the trial's weights are those of its best epoch.
        stopped: whether early stopping ended the trial.
        model: the trial's model, if it trained without a directory.
    """

    history: Sequence[Mapping[str, Any]]
    seconds: float
    keeps_best: bool
    stopped: bool
    model: TorchModel | None = None


class TrialFits(Protocol):
    """Trains trials; several threads call it at a time."""

    def run(self, trial: Trial) -> RungResult:
        """Train a trial to ``trial.rung``."""

    def model(self, trial: Trial) -> TorchModel:
        """The model of a trial that has reached ``trial.rung``, from its directory, without a step."""

    def close(self) -> None:
        """Release the rows."""


@dataclass(frozen=True)
class SearchedEstimator:
    """The estimator of a search, and the estimators of its trials.

    Attributes:
        base: the estimator of the search.
        space: the search space.
        table: the files of the search; None trains each trial to its end, without checkpoints.
        pauses: whether trials pause at rungs.
    """

    base: DistributedEstimator
    space: SearchSpace
    table: TrialTable | None
    pauses: bool

    def of(self, trial: Trial) -> DistributedEstimator:
        """The estimator of a trial, with the directory of the trial's run."""
        applied = apply(self.space.values(trial.params), self.base)
        directory = None if self.table is None else self.table.run_directory(trial.number)
        return applied.copy({applied.runDir: directory, applied.trackers: []})

    def warn_of_lost_checkpoint(self, trial: Trial, run: Run, descriptions: Mapping[str, Any]) -> None:
        """Warn if the checkpoint of the trial's last rung is gone, so that its epochs train again."""
        last = len(trial.history)
        if last and (epoch := own_checkpoints(run, descriptions).epoch()) < last:
            warnings.warn(
                f"trial {trial.number} has reached epoch {last}, and its newest checkpoint is of epoch {epoch}; it "
                "trains the epochs after it again.",
                RuntimeWarning,
                stacklevel=3,
            )


@dataclass(frozen=True)
class TaskFits:
    """Trains each trial in a task of a Spark job; the rows are packed once for all trials that read the same."""

    estimator: SearchedEstimator
    rows: DataFrame
    watch: FitMonitor
    _stack: ExitStack = field(default_factory=ExitStack)
    _lock: Any = field(default_factory=threading.Lock)
    _packed: list[tuple[DerivedColumns, TaskRunner, ClassWeights | None]] = field(default_factory=list)

    def run(self, trial: Trial) -> RungResult:
        """Train a trial to its rung in a task."""
        estimator = self.estimator.of(trial)
        state, weights = self._trained(trial, estimator, weights=self.estimator.table is None)
        report, model = state["report"], None
        if self.estimator.table is None:
            packed = merge_weights([state["weights"]])
            model = model_of(estimator, estimator.objective().model, packed, state, weights)
        stopped = report["stop_reason"] is not None
        return RungResult(state["history"], state["seconds"], report["keeps_best"], stopped, model)

    def model(self, trial: Trial) -> TorchModel:
        """The model of a trial, from its checkpoint."""
        estimator = self.estimator.of(trial)
        run = Run(estimator.getRunDir())
        with part_folder(run) as folder:
            state, weights = self._trained(trial, estimator, weights=True, part_writer=folder, pauses=False)
            result = TrainingResult(state["weights"], state["history"], state["report"], in_file=state["in_file"])
            packed = merged([result], run, folder)
        return model_of(estimator, estimator.objective().model, packed, state, weights)

    def close(self) -> None:
        """Release the packed rows."""
        self._stack.close()

    def _trained(
        self, trial: Trial, estimator: DistributedEstimator, *, weights: bool, **options: Any
    ) -> tuple[dict[str, Any], ClassWeights | None]:
        jobs, class_weights = self._rows_of(estimator)
        training, saved = replace(estimator.training(), layout=estimator.single_layout(), **options), None
        if (table := self.estimator.table) is not None:
            run, descriptions = Run(estimator.getRunDir()), estimator.descriptions()
            self.estimator.warn_of_lost_checkpoint(trial, run, descriptions)
            interval = CheckpointInterval.of(estimator.getCheckpointInterval())
            saved = TrialCheckpoints(table, own_checkpoints(run, descriptions), interval)
            last = trial.rung if self.estimator.pauses else None
            training = replace(training, last_epoch=last, result_limit=training.result_limit if weights else None)
        [result] = jobs.each(RungWork(training, saved, weights), [trial.number], all_rows=True)
        if result.trouble is not None:
            raise result.error(f"trial {trial.number}")
        return result.note, class_weights

    def _rows_of(self, estimator: DistributedEstimator) -> tuple[TaskRunner, ClassWeights | None]:
        derived = estimator.derived_columns()
        with self._lock:  # class weights and the precision decide on the columns
            for known, jobs, weights in self._packed:
                if known == derived:
                    return jobs, weights
            read = derived.read(self.rows)
            unencrypted = estimator.getAllowUnencrypted()
            jobs = self._stack.enter_context(packed_rows(read, estimator, self.watch, allow_unencrypted=unencrypted))
            self._packed.append((derived, jobs, read.class_weights))
            return jobs, read.class_weights


@dataclass(frozen=True)
class GangFits:
    """Trains each trial as a fit of the driver, on a gang of its own."""

    estimator: SearchedEstimator
    rows: DataFrame

    def run(self, trial: Trial) -> RungResult:
        """Train a trial to its rung on a gang."""
        estimator, start = self._of(trial), time.monotonic()
        model = None
        if self.estimator.table is None:
            model = estimator.fit(self.rows)
            history, report = model.history, model.report
        else:
            self.estimator.warn_of_lost_checkpoint(trial, Run(estimator.getRunDir()), estimator.descriptions())
            fitted = estimator.train_to(self.rows, trial.rung if self.estimator.pauses else None)
            history, report = fitted.history, Report(fitted.report)
        seconds, stopped = time.monotonic() - start, report.get("stop_reason") is not None
        return RungResult(history, seconds, report["keeps_best"], stopped, model)

    def model(self, trial: Trial) -> TorchModel:
        """The model of a trial, from its checkpoint."""
        return self._of(trial).fit_to(self.rows, trial.rung if self.estimator.pauses else None)

    def close(self) -> None:
        """Hold nothing."""

    def _of(self, trial: Trial) -> DistributedEstimator:
        estimator: Any = with_one_worker(self.estimator.of(trial))
        return cast(DistributedEstimator, estimator)
