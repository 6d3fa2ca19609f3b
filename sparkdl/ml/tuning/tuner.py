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
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from pyspark.ml import Estimator
from pyspark.ml.param import Params
from pyspark.sql import DataFrame, SparkSession

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
from sparkdl.spark.session import persisted, session_of
from sparkdl.spark.slots.capacity import find_slots
from sparkdl.spark.slots.task_resources import TaskResources
from sparkdl.spark.slots.worker_count import await_slots, gpus_of_tasks
from sparkdl.training.objective.monitored_value import mode_of

logger = logging.getLogger(__name__)


class TorchTuner(TunerParams, CompositeEstimator, Estimator[TorchTunerModel]):
    """Searches hyperparameters of an estimator: trials run in parallel and pause at rungs, and the best ones continue.

    With one worker, a trial trains in one Spark task; with several workers, on a gang. A trial continues from its
    checkpoint. After a failure, ``fit`` with the same ``runDir`` continues the search.

    Raises:
        InvalidInput: a Param has an invalid value, or the estimator refuses a value of the space.
    """

    def _fit(self, dataset: DataFrame) -> TorchTunerModel:
        start, estimator = time.monotonic(), checked_estimator(self, dataset)
        rule, schedule = self._plan(estimator)
        seconds, slots = self.getMaxSeconds(), _trial_slots(estimator, dataset.sparkSession)
        parallelism = self._parallelism(slots, rule, schedule)
        mark = "" if self.getRunDir() is None else fingerprint(dataset, estimator.read_columns())
        watch = FitMonitor(
            Run(self.run_directory(mark)), self, trackers=self.getTrackers(), events=self.getTelemetry(), unit="Trial"
        )
        split = partial(estimator.derived_columns().described_split, dataset)
        with self._directory(mark, schedule) as table, watch:
            earlier = {} if table is None else table.begin(self._configuration(estimator, mark), split)
            watch.begin(dataset.sparkSession)
            watch.event_log.note("trials", {"of": schedule.trials, "mode": schedule.mode})
            searched = SearchedEstimator(estimator, rule.space, table, schedule.pauses)
            with _fits(searched, dataset, watch, slots) as fits:
                loop = SearchLoop(
                    rule,
                    schedule,
                    fits,
                    table,
                    monitor=estimator.getMonitor(),
                    failures=max(3, parallelism),
                    deadline=math.inf if seconds is None else start + seconds,
                    notify=partial(_notify, watch, rule.space),
                    call_spark=session_of(dataset.sparkSession).executors,
                    trials=earlier,
                )
                try:
                    errors = in_threads(dataset.sparkSession, loop, range(parallelism), parallelism)
                finally:
                    loop.stop()  # a KeyboardInterrupt ends this thread alone
                for error in filter(None, errors):
                    raise error
                trained = loop.model or fits.model(loop.best())
            trained = trained if self.getRunDir() is not None else trained.in_memory()
        trained.columnTypes = dict(dataset.dtypes)
        trials = [described(trial, rule.space.values(trial.params)) for trial in loop.rows]
        model = TorchTunerModel.of(trained, loop.best(), trials)
        values = {**model.report, "mode": schedule.mode, "seconds": time.monotonic() - start}
        model.report = watch.report(model.history, values)
        watch.finish(model)
        return model._resetUid(self.uid)

    def _plan(self, estimator: DistributedEstimator) -> tuple[SuggestionRule, Schedule]:
        mode = mode_of(estimator.getMonitor(), estimator.getMonitorMode(), estimator.getMetrics())
        space = SearchSpace.of(self.getParamSpace() if self.isDefined(self.paramSpace) else {}, estimator)
        rule = SuggestionRule(space, self.getSampler(), self.getSeed(), mode)
        rule.check()
        trials = space.combinations() if rule.sampler == "grid" else self.getNumTrials()
        schedule = Schedule(trials, estimator.getEpochs(), mode, self.getEarlyTermination())
        schedule.rungs(0)
        return rule, schedule

    @contextmanager
    def _directory(self, mark: str, schedule: Schedule) -> Iterator[TrialTable | None]:
        directory = self.run_directory(mark)
        with ExitStack() as stack:
            if directory is None and schedule.pauses:
                folder = tempfile.TemporaryDirectory(prefix="sparkdl-", ignore_cleanup_errors=True)
                directory = stack.enter_context(folder)
            table = None if directory is None else TrialTable(directory)
            if table is not None:
                stack.callback(table.withdraw)
            yield table

    def _configuration(self, estimator: DistributedEstimator, mark: str) -> dict[str, Any]:
        def counts(params: Params, name: str) -> bool:
            declared = params.declared().get(name) if isinstance(params, ValidatedParams) else None
            of_trials = declared is None or Scope.RUN in declared.scope
            return of_trials or (name == "epochs" and isinstance(params, DistributedEstimator))

        describer = Describer(aliases(self, estimator), counts)
        return {name: describer.describe(value) for name, value in describer.values(self).items()} | {"rows": mark}

    def _parallelism(self, slots: int, rule: SuggestionRule, schedule: Schedule) -> int:
        """The number of trials at a time, if ``slots`` trials fit."""
        parallelism = self.getParallelism()
        if parallelism is None:
            parallelism = max(1, min(slots, schedule.trials // 4)) if rule.learns else slots
            reason = f"a quarter of {schedule.trials} trials, since {rule.sampler!r} learns from their values"
            logger.info(
                "parallelism is None; the search runs %d trials at a time: %s.",
                min(parallelism, schedule.trials),
                reason if parallelism < slots else f"{slots} fit into the slots",
            )
        elif parallelism > slots:
            warnings.warn(
                f"parallelism is {parallelism}, and the slots are enough for {slots} trials at a time: some trials "
                "wait for others.",
                stacklevel=5,
            )
        return min(parallelism, schedule.trials)


def _trial_slots(estimator: DistributedEstimator, spark: SparkSession) -> int:
    """How many trials fit into the task slots."""
    device = estimator.getDevice()
    requests = TaskResources.of_training(spark, device, cpus=estimator.getTaskCpus(), gpus=estimator.getTaskGpus())
    if device == "cuda" and gpus_of_tasks(spark, requests) <= 0:
        return 1  # the slots do not say how many GPUs there are
    await_slots(spark, requests)
    return max(1, (find_slots(spark, requests).now or 1) // (estimator.getNumWorkers() or 1))


@contextmanager
def _fits(searched: SearchedEstimator, dataset: DataFrame, watch: FitMonitor, slots: int) -> Iterator[TrialFits]:
    with ExitStack() as stack:
        if trains_in_task(searched.base, dataset.sparkSession):
            yield TaskFits(searched, dataset, watch, stack)
            return
        level = dataset.storageLevel
        if not (level.useMemory or level.useDisk):
            stack.enter_context(persisted(dataset))
        yield GangFits(searched, dataset, threading.Semaphore(slots))


def _notify(watch: FitMonitor, space: SearchSpace, schedule: Schedule, trial: Trial, trials: Sequence[Trial]) -> None:
    [row], best = history_of([described(trial, space.values(trial.params))]), best_trial(trials, schedule.mode)
    running = sum(one.state == "running" for one in trials)
    progress = {} if best is None else {"best": f"{best.value:.4g} of trial {best.number}"}
    shown = {"ended": len(trials) - running, "progress": {"running": str(running), **progress}}
    watch.event_log.note("trial", {**row, "values": [*trial.history], **shown})
