"""A run for TensorBoard: its history and how fast it goes as curves, its configuration as a text.

``folder`` has a point for each row of the history, by the number of the epoch, round or member:

    train/loss, train/<metric>    and what else an algorithm of rounds tells
    valid/loss, valid/<metric>
    run/seconds, run/rows_per_second, run/step, run/samples

``folder/steps`` has ``step/loss`` and ``step/rows_per_second`` of a gang, by optimizer step, a few times a second at
most. These are runs of their own to TensorBoard, for their steps count something else.

A run that resumes in its ``runDir`` continues the same curves. With ``folder`` given every fit writes there: give one
for each run, or leave it out, so that a search has one in the directory of each of its fits.
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
from sparkdl.ml.tracking.tracker import DriverRun

_STEPS = "steps"
_RUN = frozenset({"seconds", "rows_per_second", "step", "samples"})
_EVERY = 30.0  # seconds between copies of what steps tell, to a folder that is not on this host


@dataclass(frozen=True)
class TensorBoard:
    """Writes TensorBoard's event files.

    Attributes:
        folder: where they go, a path or a ``pyarrow.fs`` URI; ``tb`` in the run's directory by default. Not shown, for
            a URI may hold credentials.
    """

    folder: str | None = field(default=None, repr=False)
    on_driver: ClassVar[bool] = True

    def prepare(self, run: DriverRun) -> Board:
        """What writes this run.

        Raises:
            InvalidInput: there is nowhere to write, or tensorboard is not installed.
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
        folder: where they go.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._mirror: Mirror | None = None
        self._rows: Curves | None = None
        self._steps: Curves | None = None

    def on_start(self, run: DriverRun) -> None:
        """Have the configuration written with the first row."""
        self._mirror = Mirror(self._folder, (_STEPS,))
        self._rows = Curves(self._mirror)
        self._steps = Curves(self._mirror, _STEPS)
        self._rows.text("configuration", _table(configuration(run)))
        self._rows.text("environment", _table(run.environment))

    def on_step(self, run: DriverRun) -> None:
        """Write what a gang does on its way; a step that another attempt takes again is left out."""
        if self._steps is None or self._mirror is None:
            return
        if run.clock["step"] > max(self._steps.steps, default=-1):
            self._steps.put(run.clock["step"], {f"step/{name}": value for name, value in run.values.items()})
        self._mirror.copy(_EVERY)

    def on_epoch(self, run: DriverRun) -> None:
        """Write the new row."""
        if self._rows is not None:
            self._put(self._rows, run.history[-1])
            self._save()

    def on_end(self, run: DriverRun) -> None:
        """Write all rows anew if one is missing, and how the run ended."""
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
    """Markdown, as TensorBoard shows texts."""
    lines = [f"| {name} | {_cell(value)} |" for name, value in values.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")
