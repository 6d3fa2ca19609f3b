"""Logs runs to TensorBoard: history and throughput as scalars, configuration as text.

``folder`` has a point for each row of the history, by the number of the epoch, round or member:

    train/loss, train/<metric>    and an algorithm's other metrics
    valid/loss, valid/<metric>
    run/seconds, run/rows_per_second, run/step, run/samples

``folder/steps`` has ``step/loss`` and ``step/rows_per_second`` of a gang, by optimizer step, a few times a second at
most. TensorBoard shows it as a separate run, as its steps count optimizer steps.

A run that resumes in its ``runDir`` continues the same scalars. If ``folder`` is given, every fit writes there: use one
per run. If not, each fit of a search writes to its own run directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.fields import CheckedFields
from sparkdl.io.optional_imports import required
from sparkdl.ml.tracking.event_files import EXTRA, MODULE, EventFileMirror, ScalarCharts
from sparkdl.ml.tracking.tracker import TrackerContext, is_number, read_row

_STEPS = "steps"
_RUN = frozenset({"seconds", "rows_per_second", "step", "samples"})
_EVERY = 30.0  # seconds between copies of step scalars to a folder on another host


@dataclass(frozen=True)
class TensorBoard(CheckedFields):
    """Writes TensorBoard's event files.

    Attributes:
        folder: a path or a ``pyarrow.fs`` URI; default: ``tb`` in the run's directory. Not in the ``repr``, as a URI
            may hold credentials.
    """

    folder: str | None = field(default=None, repr=False)

    def prepare(self, run: TrackerContext) -> _TensorBoardRun:
        """Make the object that logs this run; raises ``InvalidInput`` without a folder or tensorboard."""
        required(MODULE, EXTRA)
        folder = (run.directory and files.join(run.directory, "tb")) if self.folder is None else self.folder
        if folder is None:
            raise InvalidInput("TensorBoard has no folder, and the run has no runDir; expected one of them.")
        files.locate(folder)
        return _TensorBoardRun(files.absolute(folder))


class _TensorBoardRun:
    def __init__(self, folder: str) -> None:
        self._mirror = EventFileMirror(folder)
        self._rows, self._steps = ScalarCharts(self._mirror), ScalarCharts(self._mirror, _STEPS)

    def on_start(self, run: TrackerContext) -> None:
        self._rows.text("configuration", _table(run.configuration))
        self._rows.text("environment", _table(run.environment))

    def on_step(self, run: TrackerContext) -> None:
        if run.clock["step"] > max(self._steps.steps, default=-1):
            self._steps.put(run.clock["step"], {f"step/{name}": value for name, value in run.values.items()})
        self._mirror.copy(_EVERY)

    def on_epoch(self, run: TrackerContext) -> None:
        self._put(*read_row(run.history[-1]))
        self._rows.flush()
        self._steps.flush()
        self._mirror.copy()

    def on_end(self, run: TrackerContext) -> None:
        rows = dict(map(read_row, run.history))
        if not rows.keys() <= {*self._rows.steps}:
            for number, figures in sorted(rows.items()):
                self._put(number, figures)
        report = {name: value for name, value in run.report.items() if is_number(value) or isinstance(value, str)}
        if run.error is not None:
            report["error"] = run.error
        self._rows.text("report", _table(report))
        self._rows.close()
        self._steps.close()
        self._mirror.close()

    def _put(self, number: int, figures: Mapping[str, float]) -> None:
        self._rows.put(number, {_tag(name): value for name, value in figures.items()})


def _tag(name: str) -> str:
    if name.startswith("valid_"):
        return f"valid/{name.removeprefix('valid_')}"
    return f"run/{name}" if name in _RUN else f"train/{name}"


def _table(values: Mapping[str, Any]) -> str:
    cells = {name: " ".join(str(value).split()).replace("|", "\\|") for name, value in values.items()}
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {cell} |" for name, cell in cells.items())])
