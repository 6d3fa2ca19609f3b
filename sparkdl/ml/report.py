"""The report of a run, from the results of its workers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.report.run_data import RunData
from sparkdl.telemetry.bottlenecks import spending
from sparkdl.training.spec import TrainingResult


def make_report(workers: list[TrainingResult], seconds: float, supervisor: Supervisor) -> dict[str, Any]:
    """Summarize the results of a gang's workers, in rank order; ``seconds`` is the wall time of the whole fit."""
    reports, last = [worker.report for worker in workers], workers[0].history[-1]
    phases = [report.get("phases", {}) for report in reports]
    return {
        "seconds": seconds,
        "feed_wait_seconds": max(report["feed_wait_seconds"] for report in reports),
        **rates(last["samples"], max(report["train_seconds"] for report in reports)),
        "bytes": sum(report["bytes_per_step"] for report in reports) * last["step"],
        "restarts": len(supervisor.failures),
        "workers": list(supervisor.sizes),
        **{name: reports[0][name] for name in ("best_epoch", "keeps_best", "stop_reason")},
        "validation_rows": sum(report["validation_rows"] for report in reports),
        **shares("rows_by_rank", [report["rows"] for report in reports]),
        **(spending(phases, [report["host"] for report in reports]) if all(phases) else {}),
    }


def rates(samples: int, seconds: float) -> dict[str, float]:
    """The seconds of training, and the rows per second."""
    return {"train_seconds": seconds, "rows_per_second": samples / max(seconds, 1e-9)}


def shares(name: str, rows: list[int]) -> dict[str, Any]:
    """The rows, those of each worker or shard as ``name``, and the largest share times the number of shares."""
    return {"rows": sum(rows), name: rows, "skew": max(rows) * len(rows) / max(sum(rows), 1)}


_COUNTS = ("step", "samples", "seconds", "rows_per_second", "best")  # of a history row, beside its metrics


@dataclass(frozen=True)
class TrainingSummary:
    """The figures of a fit; ``str`` has those that are known as a table.

    Attributes:
        rows: training and validation rows; None if unknown.
        parameters: numbers of the module's weights, without its buffers; None of an ensemble.
        seconds: of the whole fit, with the seconds of earlier fits in its ``runDir`` until their last checkpoints.
        restarts: failed attempts, and fits that resumed the run; 0 of an ensemble.
        startup_seconds: of the fit, in which no worker took steps; None of an ensemble and without telemetry.
        train_seconds: in which workers trained; None of an ensemble.
        epochs: epochs, rounds, members or candidates, the rows of the history.
        best_epoch: the epoch, round, member or candidate whose weights the model has; None for the last, or for all.
        last: the last row of the history.
        unit: of the history's rows: ``"epoch"``, ``"round"``, ``"member"``, ``"candidate"`` or ``"trial"``.
        metrics: of the weights that the model has: a row of the history, or figures of the whole ensemble.
        validation_rows: the part of ``rows`` that training did not use.
        device: of the training, ``"cpu"`` or ``"cuda"``; None of an ensemble.
    """

    rows: int | None
    parameters: int | None
    seconds: float
    restarts: int
    startup_seconds: float | None
    train_seconds: float | None
    epochs: int
    best_epoch: int | None
    last: Mapping[str, Any]
    unit: str
    metrics: Mapping[str, Any]
    validation_rows: int
    device: str | None

    @classmethod
    def of(
        cls, history: Sequence[Mapping[str, Any]], report: Mapping[str, Any], parameters: int | None = None
    ) -> TrainingSummary:
        """The summary of a model's history and report.

        Raises:
            InvalidInput: the model was not trained by an estimator.
        """
        if not report:
            raise InvalidInput("the model has no summary: no estimator trained it. Expected the result of fit().")
        run = RunData("", history=[dict(row) for row in history], report=dict(report))
        best = run.best if report.get("keeps_best", True) else None
        last = run.history[-1] if history else {}  # a time budget may end before the first round
        row = next((row for row in run.history if best is not None and row.get(run.unit) == best), last)
        if run.unit == "member" and best is None:  # the last member's metrics are not the ensemble's
            row = {"oob_score": report.get("oob_score")}
        members = {f"members {name}": len(report[name]) for name in ("trained", "restored") if name in report}
        return cls(
            **{name: report.get(name) for name in ("rows", "startup_seconds", "train_seconds", "device")},
            parameters=parameters,
            seconds=report["seconds"],
            restarts=report.get("restarts", 0),
            epochs=len(history),
            best_epoch=best,
            last=last,
            unit=run.unit,
            metrics={name: value for name, value in row.items() if name not in (*_COUNTS, run.unit)} | members,
            validation_rows=report.get("validation_rows", 0),
        )

    def __str__(self) -> str:
        training = None if self.rows is None else self.rows - self.validation_rows
        figures: dict[str, Any] = {"training rows": training, "validation rows": self.validation_rows or None}
        figures |= {"parameters": self.parameters, "device": self.device, "seconds": self.seconds}
        figures |= {"restarts": self.restarts or None}
        figures |= {"start-up seconds": self.startup_seconds, "training seconds": self.train_seconds}
        figures |= {f"{self.unit}s": self.epochs or None, f"best {self.unit}": self.best_epoch, **self.metrics}
        shown = {name: value for name, value in figures.items() if isinstance(value, int | float | str)}
        lines = [(name, f"{value:.4g}" if isinstance(value, float) else f"{value}") for name, value in shown.items()]
        width = max(len(name) for name, _ in lines)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


class Report(dict[str, Any]):
    """Summary of a run: a dict that can be written as an HTML page.

    Args:
        values: the figures by name.
        history: a row per epoch, round or member.
        directory: of the run, with its events and its configuration; default: none.
    """

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        history: Sequence[Mapping[str, Any]] = (),
        directory: str | None = None,
    ) -> None:
        super().__init__(values or {})
        self._history = [dict(row) for row in history]
        self._directory = directory

    @classmethod
    def of(cls, values: Mapping[str, Any] | None, history: Sequence[Mapping[str, Any]] | None) -> Report:
        """The values as a report: themselves if they are one, else without a directory, as those of a loaded model."""
        return values if isinstance(values, cls) else cls(values, history=history or ())

    def html(self, path: files.StrPath | None = None) -> str:
        """Write the run as one self-contained page; without a ``runDir`` it has no timeline and no configuration.

        Args:
            path: a path or URI of the file; default: ``report.html`` in the ``runDir``.

        Returns:
            The path of the page.

        Raises:
            InvalidInput: neither a path nor a ``runDir`` is given, or plotly is not installed.
        """
        from sparkdl.report import RunData, write_page

        if path is None:
            if self._directory is None:
                raise InvalidInput("the run has no runDir; expected html(path).")
            path = files.join(self._directory, "report.html")
        if self._directory is not None and files.exists(self._directory):
            run = RunData.read(self._directory)
        else:
            run = RunData("run", history=self._history, report=dict(self))
        write_page([run], os.fspath(path))
        return os.fspath(path)
