"""What Spark says of a failure, for people."""

from __future__ import annotations

_LINES, _MOST = 3, 1000  # lines and characters of a message


def first_lines(error: Exception) -> str:
    """The part of Spark's message that says why, without the JVM's stack."""
    lines = [line.strip() for line in str(error).splitlines()]
    kept = [line for line in lines if line and not line.startswith("at ") and "Driver stacktrace" not in line]
    return " ".join(kept[:_LINES])[:_MOST]
