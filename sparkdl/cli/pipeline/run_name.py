"""The name of a run of the pipeline, from its date or a scheduler's id."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import date

from sparkdl.cli.data import Data
from sparkdl.errors import InvalidInput

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_DATED = re.compile(r"\d{4}-\d{2}-\d{2}(\.|$)")  # the names of runs with dates begin so
_VERSION = r"-[0-9a-f]{12}-\d{4,}-[0-9a-f]{8}"  # configuration, number and writer of a run


@dataclass(frozen=True)
class RunName:
    """A date, a scheduler's id, or both."""

    day: date | None
    run_id: str | None

    @staticmethod
    def of(day: str | None, run_id: str | None) -> RunName:
        """Read a run's date and id.

        Raises:
            InvalidInput: both are missing, the date is no date, or the id has other characters.
        """
        if day is None and run_id is None:
            raise InvalidInput("date and run_id are missing; expected a date as 2026-11-22, a run id, or both.")
        try:
            parsed = None if day is None else date.fromisoformat(day)
        except ValueError as error:
            raise InvalidInput(f"date is {day!r}; expected one as 2026-11-22.") from error
        if run_id is not None and not _ID.fullmatch(run_id):
            raise InvalidInput(f"run_id is {run_id!r}; expected letters, digits and any of . _ + - after the first.")
        if run_id is not None and _DATED.match(run_id):
            raise InvalidInput(f"run_id is {run_id!r}, which begins with a date; set date, and run_id without it.")
        return RunName(parsed, run_id)

    def __str__(self) -> str:
        return ".".join(str(part) for part in (self.day, self.run_id) if part is not None)

    @property
    def partition(self) -> str:
        """The folder of its scores below ``scores``: a partition of the date, or of the run."""
        return f"date={self.day}" if self.run_id is None else f"run={self}"

    def owns(self, name: str) -> bool:
        """Whether a version, or a folder of unfinished scores, belongs to this run or an earlier one of this name."""
        return re.fullmatch(re.escape(str(self)) + _VERSION, name.removeprefix("_")) is not None

    def fill(self, data: Data) -> Data:
        """Replace {date} and {run_id} in the path, table or query.

        Raises:
            InvalidInput: one of them stands there, and the run has none.
        """
        values = {"{date}": self.day, "{run_id}": self.run_id}
        (source,) = [name for name in ("path", "table", "query") if getattr(data, name) is not None]
        text = getattr(data, source)
        for place, value in values.items():
            if place in text and value is None:
                raise InvalidInput(f"{source} is {text!r}, and the run has no {place[1:-1]}; set it.")
            text = text.replace(place, str(value))
        return replace(data, **{source: text})
