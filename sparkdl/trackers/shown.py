"""What trackers show of a run: the numbers of its rows, and its configuration without secrets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkdl import files
from sparkdl.driver_hooks import DriverRun

_NUMBERS = ("epoch", "round", "member")
_LIMITS = frozenset({"rounds"})  # what a row says of the run, in each row the same


@dataclass(frozen=True)
class Row:
    """A row of the history as a tracker writes it.

    Attributes:
        number: of the epoch, the round or the member.
        figures: its other numbers by name; what is no number, such as a status, is left out.
    """

    number: int
    figures: dict[str, float]

    @staticmethod
    def of(row: Mapping[str, Any]) -> Row:
        """The row of a history."""
        name = next(each for each in _NUMBERS if each in row)
        figures = {key: float(value) for key, value in row.items() if key != name and is_number(value)}
        return Row(int(row[name]), {key: value for key, value in figures.items() if key not in _LIMITS})


def is_number(value: object) -> bool:
    """Whether it can be a point of a curve, which NaN and infinity can."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def finite(figures: Mapping[str, float]) -> dict[str, float]:
    """The figures that are finite."""
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def configuration(run: DriverRun) -> dict[str, Any]:
    """The Params of a run by name; URIs of directories as anybody may see them."""
    given = dict(run.configuration)
    if isinstance(given.get("runDir"), str):
        given["runDir"] = files.public(given["runDir"])
    return given
