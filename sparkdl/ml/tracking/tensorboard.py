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
from typing import Any, ClassVar

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.ml.tracking.event_files import EXTRA, MODULE, Curves, Mirror
from sparkdl.ml.tracking.optional_imports import required
from sparkdl.ml.tracking.rows import Row, configuration, is_number
from sparkdl.ml.tracking.tracker import TrackerContext

_STEPS = "steps"
_RUN = frozenset({"seconds", "rows_per_second", "step", "samples"})
_EVERY = 30.0  # seconds between copies of step scalars to a folder on another host


@dataclass(frozen=True)
class TensorBoard:
    """Writes TensorBoard's event files.

    Attributes:
        folder: a path or a ``pyarrow.fs`` URI; default: ``tb`` in the run's directory. Not in the ``repr``, as a URI
            may hold credentials.
    """

    folder: str | None = field(default=None, repr=False)
    on_driver: ClassVar[bool] = True

    def prepare(self, run: TrackerContext) -> Board:
        """Make the object that logs this run.

        Raises:
            InvalidInput: there is no folder, or tensorboard is not installed.
        """
        required(MODULE, EXTRA)
        if self.folder is None and run.directory is None:
            raise InvalidInput("TensorBoard has no folder, and the run no runDir; expected one of the two.")
        folder = files.join(run.directory, "tb") if self.folder is None and run.directory is not None else self.folder
        assert folder is not None
        files.locate(folder)
        return Board(files.absolute(folder))


class Board:
    """The event files of one run.

    Args:
        folder: a path or URI.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._mirror: Mirror | None = None
        self._rows: Curves | None = None
        self._steps: Curves | None = None

    def on_start(self, run: TrackerContext) -> None:
        """Open the files; the configuration is written with the first row."""
        self._mirror = Mirror(self._folder, (_STEPS,))
        self._rows = Curves(self._mirror)
        self._steps = Curves(self._mirror, _STEPS)
        self._rows.text("configuration", _table(configuration(run)))
        self._rows.text("environment", _table(run.environment))

    def on_step(self, run: TrackerContext) -> None:
        """Write the scalars of a new step; a step that another attempt repeats is left out."""
        if self._steps is None or self._mirror is None:
            return
        if run.clock["step"] > max(self._steps.steps, default=-1):
            self._steps.put(run.clock["step"], {f"step/{name}": value for name, value in run.values.items()})
        self._mirror.copy(_EVERY)

    def on_epoch(self, run: TrackerContext) -> None:
        """Write the new row."""
        if self._rows is not None:
            self._put(self._rows, run.history[-1])
            self._save()

    def on_end(self, run: TrackerContext) -> None:
        """Write the report; if a row is missing, write all rows again."""
        if self._rows is None or self._steps is None or self._mirror is None:
            return
        rows = {Row.of(row).number: row for row in run.history}
        if not rows.keys() <= {*self._rows.steps}:
            for number in sorted(rows):
                self._put(self._rows, rows[number])
        told = {name: value for name, value in run.report.items() if is_number(value) or isinstance(value, str)}
        if run.error is not None:
            told["error"] = run.error
        self._rows.text("report", _table(told))
        self._rows.close()
        self._steps.close()
        self._mirror.close()

    def _put(self, curves: Curves, row: Mapping[str, Any]) -> None:
        read = Row.of(row)
        curves.put(read.number, {_tag(name): value for name, value in read.figures.items()})

    def _save(self) -> None:
        for curves in (self._rows, self._steps):
            if curves is not None:
                curves.flush()
        if self._mirror is not None:
            self._mirror.copy()


def _tag(name: str) -> str:
    if name.startswith("valid_"):
        return f"valid/{name.removeprefix('valid_')}"
    return f"run/{name}" if name in _RUN else f"train/{name}"


def _table(values: Mapping[str, Any]) -> str:
    """Markdown, which TensorBoard renders."""
    lines = [f"| {name} | {_cell(value)} |" for name, value in values.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")
