"""What is seen of a fit, of an estimator or of an ensemble: while it runs, and when it is over."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from pyspark.sql import SparkSession

from sparkdl.driver_hooks import DriverHooks, DriverRun
from sparkdl.events import read_events
from sparkdl.journal import shown
from sparkdl.logbook import Logbook
from sparkdl.logs import MemberLogs
from sparkdl.progress import Progress
from sparkdl.report import Report
from sparkdl.run import Run
from sparkdl.timeline import write_timeline

_PACKAGES = ("sparkdl-torch", "torch", "pyspark", "pyarrow", "numpy")


class Watch:
    """What is seen of a fit: a progress bar, members' logs and trackers; in the run's directory all that is told.

    Args:
        run: where the fit keeps what it leaves behind; nothing is written there before ``begin``.
        kind: of what is fitted, such as ``"TorchClassifier"``.
        configuration: its Params, as JSON values by name.
        hooks: those that are called on the driver.
        events: whether they are kept.

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
    ) -> None:
        name = "" if run.directory is None else shown(run.directory).rstrip("/").rpartition("/")[2]
        self.title = f"{kind} {name}".rstrip()
        self._run, self._configuration, self._progress = run, dict(configuration), Progress()
        told = DriverRun(self.title, run.directory, self._configuration)
        self._hooks = DriverHooks(hooks, told) if hooks else None
        self.logbook = Logbook(
            run.events if events else None,
            [self._progress, MemberLogs()],
            slow=[] if self._hooks is None else [self._hooks],
        )

    @property
    def folder(self) -> str | None:
        """Where events are kept; None for nowhere."""
        return self._run.events if self.logbook.keeps else None

    def begin(self, session: SparkSession) -> None:
        """Take down what is to be done, now that the run's directory is known to be its own."""
        self._run.save("config", self._configuration)
        self.logbook.note("begin", environment=environment(session))

    def close(self, error: BaseException | None) -> None:
        """The fit is over, or has failed."""
        told = None if error is None else f"{type(error).__name__}: {error}"[:2_000]
        begun = self.logbook.received > 0  # a run that is refused leaves no trace
        if begun:
            self.logbook.note("end", error=told)
        self._progress.close()
        self.logbook.close()
        if error is not None and begun and self._hooks is not None:
            self._hooks.finish(error=told)

    def report(self, history: list[dict[str, Any]], values: Mapping[str, Any]) -> Report:
        """The report of a run that has closed; history, report and timeline are written to the run's directory.

        Args:
            history: a row per epoch, round or member.
            values: what it took.
        """
        run, logbook = self._run, self.logbook
        values = {**values, "events": logbook.received, "events_dropped": logbook.dropped}
        run.save("history", history)
        run.save("report", values)
        if run.directory is not None and self.folder is not None:
            try:
                write_timeline(run.directory, read_events(self.folder))
            except OSError as error:
                warnings.warn(f"there is no timeline of the run: {error}", stacklevel=4)
        return Report(values, history=history, directory=run.directory)

    def finish(self, model: Any) -> None:
        """The model is made: the last that trackers hear."""
        if self._hooks is not None:
            self._hooks.finish(model.history, report=model.report, model=model)


@contextmanager
def watching(watch: Watch) -> Iterator[Watch]:
    """A block in which a fit is watched."""
    try:
        yield watch
    except BaseException as error:
        watch.close(error)
        raise
    watch.close(None)


def environment(session: SparkSession) -> dict[str, Any]:
    """Versions, and where the driver and Spark are."""
    return {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _PACKAGES},
        "spark": session.version,
        "master": session.conf.get("spark.master", ""),
        "application": session.conf.get("spark.app.id", ""),
        "driver": platform.node(),
        "cores of the driver": len(os.sched_getaffinity(0)),
        "platform": platform.platform(),
    }
