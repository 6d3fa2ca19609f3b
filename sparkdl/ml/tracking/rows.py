"""The numbers of a run's rows, and its configuration without secrets, for trackers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparkdl.io.redaction import public
from sparkdl.ml.tracking.tracker import TrackerContext

_NUMBERS = ("epoch", "round", "member")
_LIMITS = frozenset({"rounds"})  # the same value in every row


@dataclass(frozen=True)
class Row:
    """A row of the history for a tracker.

    Attributes:
        number: of the epoch, the round or the member.
        figures: the other numbers by name, of a dict or a list ``name/key``; values that are no numbers are left out.
    """

    number: int
    figures: dict[str, float]

    @staticmethod
    def of(row: Mapping[str, Any]) -> Row:
        """Convert a row of a history."""
        name = next(each for each in _NUMBERS if each in row)
        others = {key: value for key, value in row.items() if key != name and key not in _LIMITS}
        return Row(int(row[name]), dict(_figures("", others)))


def is_number(value: object) -> bool:
    """Whether a value is a number, NaN and infinity included."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _figures(before: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if is_number(value):
            yield before + name, float(value)
        elif isinstance(value, Mapping):
            yield from _figures(f"{before}{name}/", value)
        elif isinstance(value, list):  # such as a metric per class
            yield from ((f"{before}{name}/{key}", float(each)) for key, each in enumerate(value) if is_number(each))


def configuration(run: TrackerContext) -> dict[str, Any]:
    """The Params of a run by name; directories without credentials."""
    given = dict(run.configuration)
    if isinstance(given.get("runDir"), str):
        given["runDir"] = public(given["runDir"])
    return given
