"""What is said of members that failed, and of those that did not."""

from __future__ import annotations

from collections.abc import Sequence

from sparkdl.errors import InvalidInput, MemberFailed, SparkdlError


def named(index: int, error: Exception) -> SparkdlError:
    """An error that names the member, of the same class where that is one of ``sparkdl.errors``."""
    if not isinstance(error, SparkdlError):
        return MemberFailed(f"member {index}: {type(error).__name__}: {str(error).rstrip()}")
    return _again(error, f"member {index}: {error.message}")


def with_others(
    error: SparkdlError, others: Sequence[int], *, finished: int, count: int, kept: int | None
) -> SparkdlError:
    """The first member's error, which also tells of the others.

    Args:
        error: of the first member that failed, which it names.
        others: the indices of further ones.
        finished: members that have not failed.
        count: all members.
        kept: how many are kept for another fit; None where none can be.
    """
    said = f"{finished} of {count} members are finished"
    advice = (
        f"{said}, and nothing is kept without runDir."
        if kept is None
        else f"{said} and {kept} are kept; the same fit again trains only what is missing."
    )
    more = f" Members {[*others]} failed as well." if others else ""
    stop = "" if error.message.endswith((".", "!", "?")) else "."
    return _again(error, f"{error.message}{stop}{more} {advice}")


def _again(error: SparkdlError, message: str) -> SparkdlError:
    simple = type(error).__init__ is SparkdlError.__init__
    kind = type(error) if simple else InvalidInput if isinstance(error, InvalidInput) else MemberFailed
    return kind(message, place=error.place, trace=error.trace)
