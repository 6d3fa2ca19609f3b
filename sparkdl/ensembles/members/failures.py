"""Error messages for failed members."""

from __future__ import annotations

from collections.abc import Sequence

from sparkdl.errors import InvalidInput, SparkdlError, WorkerFailed


def member_error(index: int, error: Exception) -> SparkdlError:
    """An error that names the member; it keeps its class if ``sparkdl.errors`` has it, else it is ``WorkerFailed``."""
    if not isinstance(error, SparkdlError):
        return WorkerFailed(f"member {index}: {type(error).__name__}: {str(error).rstrip()}")
    return _with_message(error, f"member {index}: {error.message}")


def with_others(
    error: SparkdlError, others: Sequence[int], *, finished: int, count: int, stored: int | None
) -> SparkdlError:
    """Add the other failed members to the first one's error, and the numbers of finished and stored members."""
    advice = f"{finished} of {count} members are trained"
    if stored is None:
        advice += "; without runDir, fit stores none."
    else:
        advice += f" and {stored} are stored; call fit again to train only the missing ones."
    more = f" Members {[*others]} also failed." if others else ""
    stop = "" if error.message.endswith((".", "!", "?")) else "."
    return _with_message(error, f"{error.message}{stop}{more} {advice}")


def _with_message(error: SparkdlError, message: str) -> SparkdlError:
    simple = type(error).__init__ is SparkdlError.__init__
    kind = type(error) if simple else InvalidInput if isinstance(error, InvalidInput) else WorkerFailed
    return kind(message, place=error.place, trace=error.trace)
