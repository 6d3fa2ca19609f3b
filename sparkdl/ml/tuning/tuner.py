"""Hyperparameter search over an estimator.

The table of trials is the only state. Three pure functions read it, and ``loop.py`` runs what they return:

    SuggestionRule.suggest(table, number)    the values of a trial                            samplers.py
    next_step(table, schedule)               promote a trial, start one, wait, or finish      successive_halving.py
    apply(values, estimator)                 the estimator of a trial                         search_space.py
"""

from __future__ import annotations

import logging
import math
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from typing import Any

from pyspark.ml import Estimator
from pyspark.ml.param import Params
from pyspark.sql import DataFrame

from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.ml.fit_monitor import FitMonitor
from sparkdl.ml.param_declaration import Scope, ValidatedParams
from sparkdl.ml.persistence.describe import Describer
from sparkdl.ml.persistence.nested_params import aliases
from sparkdl.ml.run import Run
from sparkdl.ml.trials.composite import CompositeEstimator
from sparkdl.ml.trials.driver_threads import in_threads
from sparkdl.ml.trials.single_worker import trains_in_task
from sparkdl.ml.tuning.checks import checked_estimator
from sparkdl.ml.tuning.loop import SearchLoop
from sparkdl.ml.tuning.model import TorchTunerModel, described, history_of
from sparkdl.ml.tuning.params import TunerParams
from sparkdl.ml.tuning.samplers import SuggestionRule
from sparkdl.ml.tuning.search_space import SearchSpace
from sparkdl.ml.tuning.successive_halving import Schedule
from sparkdl.ml.tuning.trial import Trial, best_trial
from sparkdl.ml.tuning.trial_fits import GangFits, SearchedEstimator, TaskFits, TrialFits
from sparkdl.ml.tuning.trial_table import TrialTable
from sparkdl.spark.fingerprint import fingerprint
from sparkdl.spark.session import executors, persisted
from sparkdl.spark.slots.capacity import find_slots
from sparkdl.spark.slots.task_resources import TaskResources
from sparkdl.spark.slots.worker_count import await_slots
from sparkdl.training.objective.monitored_value import mode_of

logger = logging.getLogger(__name__)


class TorchTuner(TunerParams, CompositeEstimator, Estimator[TorchTunerModel]):
    """Searches hyperparameters of an estimator: trials run in parallel and pause at rungs, and the best ones continue.

    If the estimator has one worker, each trial trains in a task of its own, else on a gang. A trial continues from its
    checkpoint, so nothing trains twice, and in a ``runDir`` the same search continues after a failure.

    Raises:
        InvalidInput: a Param has an invalid value, or the estimator refuses a value of the space.
    """

    def _fit(self, dataset: DataFrame) -> TorchTunerModel:
        start, estimator = time.monotonic(), checked_estimator(self, dataset)
        rule, schedule = self._plan(estimator)
        seconds, parallelism = self.getMaxSeconds(), self._slots(estimator, rule, schedule, dataset)
        mark = "" if self.getRunDir() is None else fingerprint(dataset, estimator.read_columns())
        watch = FitMonitor(
            Run(self.run_directory(mark)), self, trackers=self.getTrackers(), events=self.getTelemetry(), unit="Trial"
        )
        split = partial(estimator.derived_columns().described_split, dataset)
        with self._directory(mark, schedule) as table, watch:
            earlier = {} if table is None else table.begin(self._configuration(estimator, mark), split)
            watch.begin(dataset.sparkSession)
            watch.event_log.note("trials", {"of": schedule.trials, "mode": schedule.mode})
            with _fits(SearchedEstimator(estimator, rule.space, table, schedule.pauses), dataset, watch) as fits:
                loop = SearchLoop(
                    rule,
                    schedule,
                    fits,
                    table,
                    monitor=estimator.getMonitor(),
                    failures=max(3, parallelism),
                    deadline=math.inf if seconds is None else start + seconds,
                    notify=partial(_notify, watch, rule.space),
                    call_spark=partial(executors, dataset.sparkSession),
                    trials=earlier,
                )
                errors = in_threads(dataset.sparkSession, loop, range(parallelism), parallelism)
                for error in filter(None, errors):
                    raise error
                trained = loop.model or fits.model(loop.best())
            trained = trained if self.getRunDir() is not None else trained.in_memory()
        model = TorchTunerModel.of(trained, loop.best(), loop.rows, rule.space)
        values = {**model.report, "mode": schedule.mode, "seconds": time.monotonic() - start}
        model.report = watch.report(model.history, values)
        watch.finish(model)
        return model._resetUid(self.uid)

    def _plan(self, estimator: DistributedEstimator) -> tuple[SuggestionRule, Schedule]:
        mode = mode_of(estimator.getMonitor(), estimator.getMonitorMode(), estimator.getMetrics())
        space = SearchSpace.of(self.getParamSpace(), estimator)
        rule = SuggestionRule(space, self.getSampler(), self.getSeed(), mode)
        rule.check()
        trials = space.combinations() if rule.sampler == "grid" else self.getNumTrials()
        schedule = Schedule(trials, estimator.getEpochs(), mode, self.getEarlyTermination())
        schedule.rungs(0)
        return rule, schedule

    @contextmanager
    def _directory(self, mark: str, schedule: Schedule) -> Iterator[TrialTable | None]:
        directory = self.run_directory(mark)
        with tempfile.TemporaryDirectory(prefix="sparkdl-", ignore_cleanup_errors=True) as folder:
            if directory is None and not schedule.pauses:
                yield None
                return
            table = TrialTable(directory or folder)
            try:
                yield table
            finally:
                table.withdraw()

    def _configuration(self, estimator: DistributedEstimator, mark: str) -> dict[str, Any]:
        def counts(params: Params, name: str) -> bool:
            declared = params.declared().get(name) if isinstance(params, ValidatedParams) else None
            of_trials = declared is None or Scope.RUN in declared.scope
            return of_trials or (params is estimator and name == "epochs")

        describer = Describer(aliases(self, estimator), counts)
        return {name: describer.describe(value) for name, value in describer.values(self).items()} | {"rows": mark}

    def _slots(
        self, estimator: DistributedEstimator, rule: SuggestionRule, schedule: Schedule, dataset: DataFrame
    ) -> int:
        """The number of trials at a time."""
        spark, workers = dataset.sparkSession, estimator.getNumWorkers() or 1
        settings = estimator.settings("taskCpus", "taskGpus")
        requests = TaskResources.of_training(
            spark, estimator.getDevice(), cpus=settings["task_cpus"], gpus=settings["task_gpus"]
        )
        await_slots(spark, requests)
        slots, parallelism = find_slots(spark, requests).now or 1, self.getParallelism()
        if parallelism is None:
            fitting = max(1, slots // workers)
            parallelism = max(1, min(fitting, schedule.trials // 4)) if rule.learns else fitting
            reason = f"a quarter of {schedule.trials} trials, since {rule.sampler!r} learns from their values"
            logger.info(
                "parallelism is None; the search runs %d trials at a time: %s.",
                parallelism,
                reason if parallelism < fitting else f"{slots} slots for {workers} workers each",
            )
        elif parallelism * workers > slots:
            warnings.warn(
                f"parallelism is {parallelism}, trials have {workers} workers, and there are {slots} slots: some "
                "trials wait for others.",
                stacklevel=5,
            )
        return min(parallelism, schedule.trials)


@contextmanager
def _fits(searched: SearchedEstimator, dataset: DataFrame, watch: FitMonitor) -> Iterator[TrialFits]:
    if trains_in_task(searched.base, dataset.sparkSession):
        with closing(TaskFits(searched, dataset, watch)) as fits:
            yield fits
        return
    level = dataset.storageLevel
    with nullcontext() if level.useMemory or level.useDisk else persisted(dataset):
        yield GangFits(searched, dataset)


def _notify(watch: FitMonitor, space: SearchSpace, schedule: Schedule, trial: Trial, trials: Sequence[Trial]) -> None:
    [row], best = history_of([described(trial, space)]), best_trial(trials, schedule.mode)
    running = sum(one.state == "running" for one in trials)
    progress = {} if best is None else {"best": f"{best.value:.4g} of trial {best.number}"}
    shown = {"ended": len(trials) - running, "progress": {"running": str(running), **progress}}
    watch.event_log.note("trial", {**row, "values": [*trial.history], **shown})
