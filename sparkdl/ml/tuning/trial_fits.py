"""How a trial trains to a rung: in one Spark task, or as a fit on a gang.

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
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.tasks import TaskRunner
from sparkdl.errors import ClusterUnavailable
from sparkdl.io.merged_weights import merge_weights
from sparkdl.ml.derived_columns.class_weights import ClassWeights
from sparkdl.ml.derived_columns.rows import DerivedColumns
from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.ml.fit_monitor import FitMonitor
from sparkdl.ml.gang_fit import merged, part_folder
from sparkdl.ml.model import TorchModel
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
        epoch: the epoch whose weights the trial has, from 1: its best one, or the last; None if no epoch has a number.
        stopped: whether early stopping ended the trial.
        model: the trial's model, if it trained without a directory.
    """

    history: Sequence[Mapping[str, Any]]
    seconds: float
    epoch: int | None
    stopped: bool
    model: TorchModel | None = None

    @classmethod
    def of(
        cls, history: Sequence[Mapping[str, Any]], report: Mapping[str, Any], start: float, model: TorchModel | None
    ) -> RungResult:
        """By the history and the report of a fit that began at ``start``, of ``time.monotonic``."""
        best = report.get("best_epoch", report.get("best_round")) if report["keeps_best"] else len(history)
        stopped = report.get("stop_reason") is not None
        return cls(history, time.monotonic() - start, best, stopped, model)


class TrialFits(Protocol):
    """Trains trials; several threads call it at a time."""

    def run(self, trial: Trial) -> RungResult:
        """Train a trial to ``trial.rung``."""

    def model(self, trial: Trial) -> TorchModel:
        """The model of a trial that has reached ``trial.rung``, from its directory, without a step."""


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

    def last_epoch(self, trial: Trial) -> int | None:
        """Where a trial pauses, or with weights ends; None trains it to its end."""
        return trial.rung if self.pauses else None

    def checkpoints(self, trial: Trial, estimator: DistributedEstimator, rows: DataFrame) -> Checkpoints:
        """The checkpoints of a trial; warn if the one of its last rung is gone, so that its epochs train again."""
        split = estimator.derived_columns().described_split(rows, None)
        checkpoints = own_checkpoints(Run(estimator.getRunDir()), estimator.descriptions() | split)
        last = len(trial.history)
        if last and (epoch := checkpoints.epoch()) < last:
            warnings.warn(
                f"trial {trial.number} has reached epoch {last}, and its newest checkpoint is of epoch {epoch}; it "
                "trains the epochs after it again.",
                RuntimeWarning,
                stacklevel=3,
            )
        return checkpoints


@dataclass(frozen=True)
class TaskFits:
    """Trains each trial in a task of a Spark job; ``stack`` has the rows, packed for all trials that read the same."""

    estimator: SearchedEstimator
    rows: DataFrame
    watch: FitMonitor
    stack: ExitStack
    _lock: Any = field(default_factory=threading.Lock)
    _packed: list[tuple[DerivedColumns, TaskRunner, ClassWeights | None]] = field(default_factory=list)

    def run(self, trial: Trial) -> RungResult:
        """Train a trial to its rung in a task."""
        start, estimator, table = time.monotonic(), self.estimator.of(trial), self.estimator.table
        state, weights = self._trained(trial, estimator, weights=table is None)
        model = None
        if table is None:
            packed = merge_weights([state["weights"]])
            model = model_of(estimator, estimator.objective().model, packed, state, weights)
        return RungResult.of(state["history"], state["report"], start, model)

    def model(self, trial: Trial) -> TorchModel:
        """The model of a trial, from its checkpoint."""
        estimator = self.estimator.of(trial)
        run, factory = Run(estimator.getRunDir()), estimator.objective().model
        with part_folder(run) as folder:
            state, weights = self._trained(trial, estimator, weights=True, part_writer=folder, pauses=False)
            result = TrainingResult(state["weights"], state["history"], state["report"], in_file=state["in_file"])
            packed = run.keep(merged([result], run, folder), factory, self.rows.sparkSession)
        return model_of(estimator, factory, packed, state, weights)

    def _trained(
        self, trial: Trial, estimator: DistributedEstimator, *, weights: bool, **options: Any
    ) -> tuple[dict[str, Any], ClassWeights | None]:
        jobs, class_weights = self._rows_of(estimator)
        training, saved = replace(estimator.training(), layout=estimator.single_layout(), **options), None
        if (table := self.estimator.table) is not None:
            interval = CheckpointInterval.of(estimator.getCheckpointInterval())
            saved = TrialCheckpoints(table, self.estimator.checkpoints(trial, estimator, self.rows), interval)
            limit = training.result_limit if weights else None
            training = replace(training, last_epoch=self.estimator.last_epoch(trial), result_limit=limit)
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
            jobs = self.stack.enter_context(packed_rows(read, estimator, self.watch, allow_unencrypted=unencrypted))
            self._packed.append((derived, jobs, read.class_weights))
            return jobs, read.class_weights


@dataclass(frozen=True)
class GangFits:
    """Trains each trial as a fit of the driver on a gang; ``slots`` counts the gangs that may run at the same time."""

    estimator: SearchedEstimator
    rows: DataFrame
    slots: threading.Semaphore

    def run(self, trial: Trial) -> RungResult:
        """Train a trial to its rung on a gang."""
        start, estimator = time.monotonic(), self._of(trial)
        with self.slots:  # a gang that waits for slots too long gives up
            if self.estimator.table is None:
                model = estimator.fit(self.rows)
                return RungResult.of(model.history, model.report, start, model)
            checkpoints = self.estimator.checkpoints(trial, estimator, self.rows) if self.estimator.pauses else None
            fitted = estimator.train_to(self.rows, self.estimator.last_epoch(trial))
        if checkpoints is not None:
            if checkpoints.epoch() < len(fitted.history):
                raise ClusterUnavailable(
                    f"the workers of trial {trial.number} saved its checkpoint in another directory than "
                    f"{checkpoints.folder.path} of the driver; set runDir to one that all hosts share."
                )
            checkpoints.prune()
        return RungResult.of(fitted.history, fitted.report, start, None)

    def model(self, trial: Trial) -> TorchModel:
        """The model of a trial, from its checkpoint."""
        return self._of(trial).fit_to(self.rows, self.estimator.last_epoch(trial))

    def _of(self, trial: Trial) -> DistributedEstimator:
        estimator: Any = with_one_worker(self.estimator.of(trial))
        return cast(DistributedEstimator, estimator)
