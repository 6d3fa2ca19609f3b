"""What is seen of a fit: while it runs, and when it is over."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from typing import TYPE_CHECKING, Any

from sparkdl.driver_hooks import DriverHooks, DriverRun, apart
from sparkdl.events import read_events
from sparkdl.logbook import Logbook
from sparkdl.logs import MemberLogs
from sparkdl.progress import Progress
from sparkdl.report import Report
from sparkdl.run import Run
from sparkdl.timeline import write_timeline

if TYPE_CHECKING:
    from sparkdl.ml.estimator import GangEstimator
    from sparkdl.ml.fit import Fit, Fitted
    from sparkdl.ml.model import TorchModel

_PACKAGES = ("sparkdl-torch", "torch", "pyspark", "pyarrow", "numpy")


class Watch:
    """What is seen of a fit.

    Args:
        estimator: what is fitted.
        fit: what the fit is given.

    Attributes:
        logbook: listens to all that happens.
    """

    def __init__(self, estimator: GangEstimator, fit: Fit) -> None:
        self._run, self._progress = fit.run, Progress()
        _, hooks = apart(estimator.getHooks())
        shown = DriverRun(run_name(estimator, fit.run), fit.run.directory, fit.configuration)
        self._hooks = DriverHooks(hooks, shown) if hooks else None
        self.logbook = Logbook(
            fit.run.events if estimator.getEvents() else None,
            [self._progress, MemberLogs()],
            slow=[] if self._hooks is None else [self._hooks],
        )

    def close(self, error: BaseException | None) -> None:
        """The fit is over."""
        told = None if error is None else f"{type(error).__name__}: {error}"[:2_000]
        begun = self.logbook.received > 0  # a run that is refused leaves no trace
        if begun:
            self.logbook.note("end", error=told)
        self._progress.close()
        self.logbook.close()
        if error is not None and begun and self._hooks is not None:
            self._hooks.finish(error=told)

    def told(self, fitted: Fitted, seconds: float) -> Fitted:
        """What a fit has brought back, with its report; and in the run's directory history, report and timeline.

        Args:
            fitted: what it has brought back.
            seconds: that it took.
        """
        run, logbook = self._run, self.logbook
        values = fitted.report | {"seconds": seconds, "events": logbook.received, "events_dropped": logbook.dropped}
        run.save("history", fitted.history)
        run.save("report", values)
        if run.directory is not None and run.events is not None and logbook.received:
            try:
                write_timeline(run.directory, read_events(run.events))
            except OSError as error:
                warnings.warn(f"there is no timeline of the run: {error}", stacklevel=4)
        return replace(fitted, report=Report(values, history=fitted.history, directory=run.directory))

    def finish(self, model: TorchModel) -> TorchModel:
        """The model is made: the last that trackers hear."""
        if self._hooks is not None:
            self._hooks.finish(model.history, report=model.report, model=model)
        return model


@contextmanager
def watched(estimator: GangEstimator, fit: Fit) -> Iterator[Watch]:
    """A block in which a fit runs, with a progress bar, members' logs and trackers.

    Args:
        estimator: what is fitted.
        fit: what the fit is given.
    """
    watch = Watch(estimator, fit)
    try:
        yield watch
    except BaseException as error:
        watch.close(error)
        raise
    watch.close(None)


def begin(fit: Fit, logbook: Logbook) -> None:
    """Take down what is to be done; the run's directory is known to be its own."""
    fit.run.save("config", fit.configuration)
    logbook.note("begin", environment=environment(fit))


def run_name(estimator: GangEstimator, run: Run) -> str:
    """What a run is called: its class, and the name of its directory."""
    directory = run.directory
    return type(estimator).__name__ + (f" {directory.rstrip('/').rpartition('/')[2]}" if directory else "")


def environment(fit: Fit) -> dict[str, Any]:
    """Versions, and where the driver and Spark are."""
    session = fit.data.sparkSession
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
