"""Progress, logs, trackers and events of a fit of an estimator or an ensemble."""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from pyspark.ml.param import Params
from pyspark.sql import SparkSession

from sparkdl.errors import InvalidInput
from sparkdl.io.redaction import masked, public
from sparkdl.io.threads import OBSERVING, BackgroundQueue, observe
from sparkdl.ml.persistence.formatting import to_json_value
from sparkdl.ml.report import Report
from sparkdl.ml.run import Run
from sparkdl.ml.tracking.tracker import TrackerContext, TrackerList
from sparkdl.telemetry.bottlenecks import PhaseTotals, spending, with_startup
from sparkdl.telemetry.chrome_trace import write_timeline
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_log import EventLog
from sparkdl.telemetry.log_forwarding import WorkerLogs
from sparkdl.telemetry.progress_bar import Progress

_WORK = ("step", "epoch", "round", "member", "trial")


class FitMonitor:
    """Monitors a fit: progress bar, workers' logs, trackers, and events in the run's directory.

    A context manager: it closes when the block ends or fails.

    Args:
        run: the run's directory; nothing is written there before ``begin``.
        estimator: whose class and Params are the configuration.
        events: whether events are saved.
        unit: the meaning of an event's rank: ``"Rank"`` of a gang, a shard of rounds, or an ensemble's member.

    Attributes:
        run: as the argument.
        title: of the run: its class, and the name of its directory.
        event_log: receives all events.
        phases: sums them by phase.
    """

    def __init__(
        self, run: Run, estimator: Params, *, trackers: Sequence[Any] = (), events: bool = True, unit: str = "Rank"
    ) -> None:
        name = "" if run.directory is None else public(run.directory).rstrip("/").rpartition("/")[2]
        self.title = f"{type(estimator).__name__} {name}".rstrip()
        self.run = run
        self._configuration: dict[str, Any] = {"class": type(estimator).__name__}
        for param in filter(estimator.isDefined, estimator.params):
            # The accessor: a default may depend on another Param, as a loss does.
            getter = getattr(estimator, f"get{param.name[0].upper()}{param.name[1:]}", None)
            value = estimator.getOrDefault(param) if getter is None else getter()
            shown = to_json_value(value)
            self._configuration[param.name] = masked(shown) if isinstance(shown, str) else shown
        self._fraction = self._configuration.get("validationFraction")  # None once its rows are logged
        if run.directory is not None:
            self._configuration["runDir"] = public(run.directory)
        self._trackers = TrackerList(trackers, TrackerContext(self.title, run.directory, self._configuration))
        self._calls: BackgroundQueue[Callable[[], None]] | None = None
        if trackers:  # a tracker may be slow, so it has its own queue, and nothing waits for it
            names = ", ".join(type(tracker).__name__ for tracker in trackers)
            self._calls = BackgroundQueue(lambda call: call(), f"the trackers {names}")
        self.phases, self._unit = PhaseTotals(), unit
        # They write to a stream, which may block.
        self._shown = BackgroundQueue(Progress(), "the progress bar", limit=OBSERVING)
        self._lines = BackgroundQueue(WorkerLogs(), "workers' lines", limit=OBSERVING)
        views: list[Callable[[Event], None]] = [self._shown.put, self._lines.put, self.phases, self._receive]
        self.event_log = EventLog(run.events if events else None, views)
        self._worked = False  # whether a worker or a round has reported work

    def begin(self, session: SparkSession) -> None:
        """Save the configuration, once the run's directory is checked."""
        self.run.save("config", self._configuration)
        self.event_log.note("begin", {"environment": _environment(session)})

    def __enter__(self) -> FitMonitor:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        message = None if error is None else masked(f"{type(error).__name__}: {error}")[:2_000]
        begun = self.event_log.received > 0  # a run that fails its checks leaves no trace
        if begun:
            # A fit that failed its checks did not touch the run in this directory, whose page ignores this end.
            refused = isinstance(error, InvalidInput) and not self._worked
            self.event_log.note("end", {"error": message, "refused": refused})
        self._lines.close()
        self._shown.close()
        self.event_log.close()
        if error is not None and begun:
            self._draw()
            self._end(error=message)
        elif error is not None and self._calls is not None:
            self._calls.close()  # trackers hear nothing of a run that has not begun

    def report(self, history: list[dict[str, Any]], values: Mapping[str, Any]) -> Report:
        """Make the report of a closed run from its figures, and write history and report to the run's directory."""
        run, event_log = self.run, self.event_log
        phases = self.phases.phases()
        if phases and "phases" not in values:  # tasks, unlike workers of a gang, return no sums
            values = {**values, **spending(phases, unit=self._unit)}
        elif self._unit == "Rank":
            values = with_startup(values, self.phases.startup())
        values = {**values, "events": event_log.received, "events_dropped": event_log.dropped}
        if event_log.dropped_at_least:
            values["events_dropped_at_least"] = True
        observe(partial(run.save, "history", history), "writing history.json")
        observe(partial(run.save, "report", values), "writing report.json")
        return Report(values, history=history, directory=run.directory)

    def finish(self, model: Any) -> None:
        """Draw the timeline and pass the model to the trackers."""
        self._draw()
        self._end(history=model.history, report=model.report, model=model)

    def _receive(self, event: Event) -> None:
        if event.kind == "rows" and self._fraction is not None:
            rows, fraction, self._fraction = event.payload, self._fraction, None
            message = "validationFraction=%s: %d training rows and %d validation rows"
            logging.getLogger(__name__).info(message, fraction, rows["training"], rows["validation"])
        self._worked = self._worked or event.kind in _WORK
        if self._calls is None or not self._trackers.wants(event):
            return
        if self._unit == "Trial" and event.kind != "begin":  # tasks of trials record epochs of their own
            return
        if event.kind != "progress" or not self._calls.busy:  # a slow tracker gets the latest values only
            self._calls.put(partial(self._trackers, event))

    def _end(self, **values: Any) -> None:
        if self._calls is not None:
            self._calls.put(partial(self._trackers.finish, **values))
            self._calls.close()

    def _draw(self) -> None:
        if self.run.directory is not None and self.event_log.folder is not None:
            observe(partial(write_timeline, self.run.directory), "writing timeline.json")


def _environment(session: SparkSession) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "sparkdl-torch": str(sys.modules["sparkdl"].__version__),
        **{name: str(sys.modules[name].__version__) for name in ("torch", "pyspark", "pyarrow", "numpy")},
        "spark": session.version,
        "master": session.conf.get("spark.master", ""),
        "application": session.conf.get("spark.app.id", ""),
        "driver": platform.node(),
        "cores of the driver": len(os.sched_getaffinity(0)),
        "platform": platform.platform(),
    }
