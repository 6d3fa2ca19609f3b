"""Watches tagged jobs; cancels a barrier job that waits too long for slots or workers: Spark sets no limit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sparkdl.cluster.shutdown import POLL, stop_requested
from sparkdl.io.threads import watching
from sparkdl.spark.session import Session, session_of
from sparkdl.spark.session.errors import JVM_ERRORS

Report = Callable[[str, float], None]
"""Called with the awaited resource and the seconds waited so far."""
END_SECONDS = 60.0  # for a cancelled job

logger = logging.getLogger(__name__)


@contextmanager
def tagged(session: Session, tag: str, watch: Callable[[threading.Event], None]) -> Iterator[None]:
    """Tag the jobs that this thread starts inside the block, while ``watch(ended)`` runs in another thread."""
    with session.tagged(tag), watching(watch, f"sparkdl-watch-{tag}"):
        yield


def cancelled_on_stop(session: Session, tag: str) -> AbstractContextManager[None]:
    """A block whose jobs, which have the tag, are cancelled if a stop is requested."""

    def watch(ended: threading.Event) -> None:
        while not ended.wait(POLL):  # repeat, for a job that had not started
            if stop_requested() is not None:
                with suppress(*JVM_ERRORS):
                    session.cancel(tag)

    return tagged(session, tag, watch)


class JobWatch:
    """Watches a tagged job, and cancels it if it waits longer than ``timeout`` seconds for ``size`` free slots."""

    def __init__(self, spark: SparkSession, tag: str, size: int, *, timeout: float, report: Report) -> None:
        self.gave_up: float | None = None  # after so many seconds
        self.is_silent: Callable[[float], bool] = lambda seconds: False  # whether to cancel tasks that ran for seconds
        self.show_tasks: Callable[..., None] | None = None  # called with the numbers of its tasks if they change
        self.cancelled = False  # whether sparkdl, and not the user, cancelled the job
        self._session, self._tag = session_of(spark), tag
        self._size, self._timeout, self._report = size, timeout, report

    def running(self) -> AbstractContextManager[None]:
        """A block whose jobs are watched."""
        return tagged(self._session, self._tag, self._watch)

    def collect(self, rows: DataFrame) -> list[Any]:
        """Run the query of the job that is watched."""
        return self._session.collect(rows, self._tag)

    def cancel(self) -> None:
        """Cancel the job, without waiting for its end."""
        self.cancelled = True
        self._session.cancel(self._tag)

    def end(self) -> None:
        """Cancel the job if it still runs, and return once it has ended, or with a warning after a minute."""
        self._session.cancel(self._tag)
        end = time.monotonic() + END_SECONDS
        while self._session.runs(self._tag):
            if time.monotonic() > end:
                logger.warning("the job %s still runs %g s after sparkdl cancelled it", self._tag, END_SECONDS)
                return
            time.sleep(POLL)

    def _watch(self, ended: threading.Event) -> None:
        state: str | None = None
        began, counted = 0.0, None
        while not ended.wait(POLL):
            before, state = state, self._session.state(self._tag)
            began = began if state == before else time.monotonic()
            waited = time.monotonic() - began
            if state == "waiting" and waited > self._timeout:
                self.gave_up = waited
            if self.gave_up is not None or (state == "running" and self.is_silent(waited)):
                self.cancel()
                return
            if state == "waiting":
                self._report(f"{self._size} free task slots", waited)
            elif self.show_tasks is not None and (tasks := self._session.tasks(self._tag)) not in (None, counted):
                counted = tasks
                self.show_tasks(**dict(zip(("running", "ended", "of"), tasks or (), strict=True)))
