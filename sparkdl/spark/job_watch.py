"""Cancels a barrier job that waits too long for slots; Spark itself sets no limit."""

from __future__ import annotations

import threading
import time
from typing import Any

from pyspark.sql import SparkSession

from sparkdl.cluster.shutdown import POLL
from sparkdl.spark.resources import Report


class JobWatch:
    """Watches a tagged job from a thread, and cancels it if it waits too long for free slots.

    Args:
        spark: the session that runs the job.
        tag: the job's tag; jobs that the calling thread starts inside the block carry it.
        size: tasks of the barrier stage.
        timeout: maximum seconds to wait for slots that other jobs hold.
        report: called about four times a second during the wait.
    """

    def __init__(self, spark: SparkSession, tag: str, size: int, *, timeout: float, report: Report) -> None:
        self.gave_up: float | None = None
        self._context = spark.sparkContext
        self._tag, self._size, self._timeout, self._report = tag, size, timeout, report
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"sparkdl-watch-{tag}", daemon=True)

    def __enter__(self) -> JobWatch:
        self._context.addJobTag(self._tag)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._context.removeJobTag(self._tag)
        self._thread.join()

    def cancel(self) -> None:
        """Cancel the job, and return once it is no longer active."""
        self._context.cancelJobsWithTag(self._tag)
        while self._job() is not None and not self._done.wait(POLL):
            continue

    def _watch(self) -> None:
        began: float | None = None
        while not self._done.wait(POLL):
            if not self._waits_for_slots():
                began = None
                continue
            began = began or time.monotonic()
            waited = time.monotonic() - began
            if waited > self._timeout:
                self.gave_up = waited
                self._context.cancelJobsWithTag(self._tag)
                return
            self._report(f"{self._size} free task slots", waited)

    def _waits_for_slots(self) -> bool:
        """Whether the job has pending and no running tasks, by the scheduler; the status store lags behind."""
        job = self._job()
        sets = [] if job is None else [found for found in map(self._task_set, job.stageIds()) if found is not None]
        ready = any(found.tasksSuccessful() < found.numTasks() for found in sets)
        return ready and not any(found.runningTasks() for found in sets)

    def _task_set(self, stage: int) -> Any:
        """The stage's tasks; None if it is done, or waits for an earlier stage."""
        spark = self._context._jsc.sc()
        info = spark.statusTracker().getStageInfo(stage)
        if info.isEmpty():
            return None
        found = spark.taskScheduler().taskSetManagerForAttempt(stage, info.get().currentAttemptId())
        return None if found.isEmpty() or found.get().isZombie() else found.get()

    def _job(self) -> Any:
        tracker = self._context._jsc.sc().statusTracker()
        active = set(tracker.getActiveJobIds())
        for identity in tracker.getJobIdsForTag(self._tag):
            if identity in active:
                found = tracker.getJobInfo(identity)
                return found.get() if found.isDefined() else None
        return None
