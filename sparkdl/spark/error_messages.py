"""What Spark says of a failure, for people."""

from __future__ import annotations

from collections.abc import Iterator

_LINES, _MOST = 3, 1000  # lines and characters of a message
_TRACEBACK = "Traceback (most recent call last):"


def first_lines(error: Exception) -> str:
    """The part of Spark's message that says why, without stacks: of Python's the last line alone, which is the error's.

    Args:
        error: as pyspark raises it.
    """
    lines = [line.strip() for line in _without_frames(str(error))]
    kept = [line for line in lines if line and not line.startswith("at ") and "Driver stacktrace" not in line]
    return " ".join(kept[:_LINES])[:_MOST]


def _without_frames(message: str) -> Iterator[str]:
    inside = False
    for line in message.splitlines():
        if line.endswith(_TRACEBACK):
            inside = True
            yield line.removesuffix(_TRACEBACK)
        elif not (inside and line.startswith(" ")):  # as the frames of a traceback are
            inside = False
            yield line
