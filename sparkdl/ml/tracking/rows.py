"""The numbers of a run's rows, for trackers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sparkdl.ml.tracking.tracker import ROWS


def read_row(row: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
    """The number of a row's member, round or epoch, and its other numbers by name, of a dict or a list ``name/key``."""
    name = next(name for name in ROWS if name in row)
    others = {key: value for key, value in row.items() if key not in (name, "rounds")}  # rounds is equal in every row
    return int(row[name]), dict(_figures("", others))


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
            numbers = {str(key): number for key, number in enumerate(value) if is_number(number)}
            yield from _figures(f"{before}{name}/", numbers)
