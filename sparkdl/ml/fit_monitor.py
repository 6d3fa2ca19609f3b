"""What is seen of a fit, of an estimator or of an ensemble: while it runs, and when it is over."""

from __future__ import annotations

import os
import platform
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from typing import Any

from pyspark.sql import SparkSession

from sparkdl.errors import InvalidInput
from sparkdl.io.redaction import public
from sparkdl.io.threads import Aside
from sparkdl.ml.report import Report
from sparkdl.ml.run import Run
from sparkdl.ml.tracking.tracker import DriverHooks, DriverRun
from sparkdl.telemetry.bottlenecks import Spent, spending
from sparkdl.telemetry.chrome_trace import write_timeline
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_log import Logbook
from sparkdl.telemetry.log_forwarding import MemberLogs
from sparkdl.telemetry.progress_bar import Progress

_WORK = ("step", "epoch", "round", "member")
_PACKAGES = ("sparkdl-torch", "torch", "pyspark", "pyarrow", "numpy")


class Watch:
    """What is seen of a fit: a progress bar, members' logs and trackers; in the run's directory all that is told.

    Args:
        run: where the fit keeps what it leaves behind; nothing is written there before ``begin``.
        kind: of what is fitted, such as ``"TorchClassifier"``.
        configuration: its Params, as JSON values by name.
        hooks: those that are called on the driver.
        events: whether they are kept.
        unit: what the ranks of events are the numbers of: members of a gang, parts of rounds, an ensemble's members.

    Attributes:
        title: of the run: its kind, and the name of its directory.
        logbook: listens to all that happens.
    """

    def __init__(
        self,
        run: Run,
        kind: str,
        configuration: Mapping[str, Any],
        *,
        hooks: Sequence[Any] = (),
        events: bool = True,
        unit: str = "Rank",
    ) -> None:
        name = "" if run.directory is None else public(run.directory).rstrip("/").rpartition("/")[2]
        self.title = f"{kind} {name}".rstrip()
        self._run, self._configuration, self._progress = run, {**configuration}, Progress()
        if run.directory is not None:
            self._configuration["runDir"] = public(run.directory)
        told = DriverRun(self.title, run.directory, self._configuration)
        self._hooks = DriverHooks(hooks, told) if hooks else None
        # A tracker may be slow: what it is called for waits in a queue of its own, and nobody waits for that.
        self._beside: Aside[Callable[[], None]] | None = Aside(_call, "sparkdl-hooks") if hooks else None
        self._spent, self._unit = Spent(), unit
        views: list[Callable[[Event], None]] = [self._progress, MemberLogs(), self._spent, self._hear]
        self.logbook = Logbook(run.events if events else None, views)
        self._worked = False  # whether anything was heard of a member's or a round's work

    @property
    def folder(self) -> str | None:
        """Where events are kept; None for nowhere."""
        return self._run.events if self.logbook.keeps else None

    def begin(self, session: SparkSession) -> None:
        """Take down what is to be done, now that the run's directory is known to be its own."""
        self._run.save("config", self._configuration)
        self.logbook.note("begin", {"environment": environment(session)})

    def close(self, error: BaseException | None) -> None:
        """The fit is over, or has failed."""
        told = None if error is None else f"{type(error).__name__}: {error}"[:2_000]
        begun = self.logbook.received > 0  # a run that is refused leaves no trace
        if begun:
            # Of a fit that was refused the run in this directory knows nothing, whose pages go on to be of itself.
            refused = isinstance(error, InvalidInput) and not self._worked
            self.logbook.note("end", {"error": told, "refused": refused})
        self._progress.close()
        self.logbook.close()
        if error is not None and begun:
            self._draw()
            self._end(error=told)

    def report(self, history: list[dict[str, Any]], values: Mapping[str, Any]) -> Report:
        """The report of a run that has closed; history and report are written to the run's directory.

        Args:
            history: a row per epoch, round or member.
            values: what it took.
        """
        run, logbook = self._run, self.logbook
        phases = self._spent.phases()
        if phases and "phases" not in values:  # tasks, unlike members of a gang, bring back no sums
            values = {**values, **spending(phases, unit=self._unit)}
        values = {**values, "events": logbook.received, "events_dropped": logbook.dropped}
        if logbook.dropped_at_least:
            values["events_dropped_at_least"] = True
        run.save("history", history)
        run.save("report", values)
        return Report(values, history=history, directory=run.directory)

    def finish(self, model: Any) -> None:
        """The model is made: the timeline is drawn, and trackers hear of it."""
        self._draw()
        self._end(history=model.history, report=model.report, model=model)

    def _hear(self, event: Event) -> None:
        self._worked = self._worked or event.kind in _WORK
        if self._hooks is None or self._beside is None or not self._hooks.wants(event):
            return
        if event.kind == "progress" and self._beside.busy:
            return  # a hook that is slow is called with the latest values, and not with all that there were
        self._beside.put(partial(self._hooks, event))

    def _end(self, **told: Any) -> None:
        """The last that hooks hear; one that does not return is left behind."""
        if self._hooks is not None and self._beside is not None:
            self._beside.put(partial(self._hooks.finish, **told))
            self._beside.close()

    def _draw(self) -> None:
        """Write the timeline; whatever is wrong with that, a run that is over does not fail for it."""
        if self._run.directory is None or self.folder is None:
            return
        try:
            write_timeline(self._run.directory)
        except Exception as error:
            warnings.warn(f"there is no timeline of the run: {type(error).__name__}: {error}", stacklevel=4)


def _call(what: Callable[[], None]) -> None:
    what()


@contextmanager
def watching(watch: Watch) -> Iterator[Watch]:
    """A block in which a fit is watched."""
    try:
        yield watch
    except BaseException as error:
        watch.close(error)
        raise
    watch.close(None)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # it came as a zip, as pyspark does with a Spark that was not pip-installed
        return str(getattr(sys.modules.get(name), "__version__", "not known"))


def environment(session: SparkSession) -> dict[str, Any]:
    """Versions, and where the driver and Spark are."""
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "spark": session.version,
        "master": session.conf.get("spark.master", ""),
        "application": session.conf.get("spark.app.id", ""),
        "driver": platform.node(),
        "cores of the driver": len(os.sched_getaffinity(0)),
        "platform": platform.platform(),
    }
