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

from sparkdl.events import read_events
from sparkdl.logbook import Logbook
from sparkdl.logs import MemberLogs
from sparkdl.progress import Progress
from sparkdl.report import Report
from sparkdl.timeline import write_timeline

if TYPE_CHECKING:
    from sparkdl.ml.estimator import GangEstimator
    from sparkdl.ml.fit import Fit, Fitted

_PACKAGES = ("sparkdl-torch", "torch", "pyspark", "pyarrow", "numpy")


@contextmanager
def watched(estimator: GangEstimator, fit: Fit) -> Iterator[Logbook]:
    """A block in which a fit runs: its logbook, with a progress bar and members' logs.

    Args:
        estimator: what is fitted.
        fit: what the fit is given. Nothing is written before ``begin``: a run that is refused leaves no trace.
    """
    progress = Progress()
    folder = fit.run.events if estimator.getEvents() else None
    with progress, Logbook(folder, [progress, MemberLogs()]) as logbook:
        try:
            yield logbook
        except BaseException as error:
            if logbook.received:
                logbook.note("end", error=f"{type(error).__name__}: {error}"[:2_000])
            raise
        logbook.note("end", error=None)


def begin(fit: Fit, logbook: Logbook) -> None:
    """Take down what is to be done; the run's directory is known to be its own."""
    fit.run.save("config", fit.configuration)
    logbook.note("begin", environment=environment(fit))


def told(fitted: Fitted, fit: Fit, logbook: Logbook, *, seconds: float) -> Fitted:
    """What a fit has brought back, with its report; and in the run's directory history, report and timeline.

    Args:
        fitted: what it has brought back.
        fit: what it was given.
        logbook: closed.
        seconds: that it took.
    """
    run = fit.run
    values = fitted.report | {"seconds": seconds, "events": logbook.received, "events_dropped": logbook.dropped}
    run.save("history", fitted.history)
    run.save("report", values)
    if run.directory is not None and run.events is not None and logbook.received:
        try:
            write_timeline(run.directory, read_events(run.events))
        except OSError as error:
            warnings.warn(f"there is no timeline of the run: {error}", stacklevel=4)
    return replace(fitted, report=Report(values, history=fitted.history, directory=run.directory))


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
