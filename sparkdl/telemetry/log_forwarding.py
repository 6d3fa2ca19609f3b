"""What members log and print, on the driver.

In a member ``forwarding`` makes events of kind ``"log"`` of its log records, and of the lines that it prints, which
count as of level INFO; where they went before they still go. On the driver ``MemberLogs`` writes them with the rank
before each::

    [rank 1, worker-3] WARNING torch.nn: ...

Both sides leave lines out where there are too many, and say how many: a member sends ``RATE`` a second, and ``BURST``
of them at once; the driver shows as many, of all members together.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from tqdm.auto import tqdm

from sparkdl.errors import InvalidInput
from sparkdl.telemetry.emit import PROCESS, record
from sparkdl.telemetry.event import Event

__all__ = ["LEVELS", "MemberLogs", "forwarding", "level_of", "pass_on"]

LEVELS = ("debug", "info", "warning", "error", "off")
RATE = 20.0
BURST = 100

_PRINTED = "print"
_LONGEST = 10_000  # characters of a line that is sent


def level_of(name: str) -> int | None:
    """The number that ``logging`` has for a level; None for ``"off"``.

    Raises:
        InvalidInput: it is none of ``LEVELS``.
    """
    if name not in LEVELS:
        raise InvalidInput(f"the level of logs is {name!r}; expected one of {', '.join(LEVELS)}.")
    return None if name == "off" else int(getattr(logging, name.upper()))


class Allowance:
    """So many lines a second, and a burst at once.

    Args:
        rate: lines a second.
        burst: lines at once, at most.
        now: seconds from some point on, increasing.
    """

    def __init__(self, rate: float = RATE, burst: float = BURST, now: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._now = rate, float(burst), now
        self._left, self._looked, self._refused = float(burst), now(), 0
        self._lock = threading.RLock()  # reentrant: a signal handler that logs may interrupt one who does

    def take(self, before: int = 0) -> int | None:
        """How many lines were left out since the last one, which is one more that may go; None: leave it out.

        Args:
            before: lines that were left out before this one came here.
        """
        with self._lock:
            now = self._now()
            self._left = min(self._burst, self._left + (now - self._looked) * self._rate)
            self._looked = now
            if self._left < 1:
                self._refused += 1 + before
                return None
            self._left -= 1
            refused, self._refused = self._refused + before, 0
            return refused


@contextlib.contextmanager
def forwarding(level: int | None) -> Iterator[None]:
    """Make events of what is logged in the block, from this level on, and with INFO or lower of what is printed.

    Loggers that are set to let nothing of that level through still let nothing through. Py4J's are left out: what they
    say is of the way to the driver.
    """
    if level is None:
        yield
        return
    root = logging.getLogger()
    before, handler = root.level, _Forwarder(level, None if root.handlers else logging.lastResort)
    root.addHandler(handler)
    root.setLevel(min(before, level) or level)
    printing = contextlib.redirect_stdout(_Lines(sys.stdout, handler)) if level <= logging.INFO else None
    try:
        with printing or contextlib.nullcontext():
            yield
    finally:
        root.setLevel(before)
        root.removeHandler(handler)


class _Forwarder(logging.Handler):
    """Makes an event of each record.

    Args:
        level: of the records.
        last: the handler that records would have gone to if this one were not there; None where there are others.
    """

    def __init__(self, level: int, last: logging.Handler | None) -> None:
        super().__init__(level)
        self._allowance, self._last = Allowance(), last

    def emit(self, entry: logging.LogRecord) -> None:
        """Send a record, where there are not too many."""
        if self._last is not None and entry.levelno >= self._last.level:
            self._last.handle(entry)
        if entry.name.partition(".")[0] == "py4j" or entry.name.startswith("sparkdl.telemetry.recorder"):
            return
        try:
            self.send(entry.levelname, entry.name, self.format(entry))
        except Exception:  # a record whose arguments do not fit its message
            self.handleError(entry)

    def send(self, level: str, name: str, message: str) -> None:
        """Send a line, where there are not too many."""
        left_out = self._allowance.take()
        if left_out is not None:
            record("log", level=level, logger=name, message=message, left_out=left_out)


class _Lines:
    """Standard output, of which each whole line is sent as well."""

    def __init__(self, stream: TextIO, forwarder: _Forwarder) -> None:
        self._stream, self._forwarder, self._line = stream, forwarder, ""

    def write(self, text: str) -> int:
        """Write, and send the lines that are whole."""
        written = self._stream.write(text)
        *lines, self._line = (self._line + text).split("\n")
        if len(self._line) > _LONGEST:  # a line that is drawn over and over, and never ends
            self._line = ""
        for line in lines:
            if line.strip():
                self._forwarder.send("INFO", _PRINTED, line)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class MemberLogs:
    """A listener that writes members' lines, above a progress bar if there is one.

    Args:
        stream: where they go; standard error by default.
        allowance: how many at a time.
    """

    def __init__(self, stream: TextIO | None = None, allowance: Allowance | None = None) -> None:
        self._stream = stream or sys.stderr
        self._allowance = allowance or Allowance()

    def __call__(self, event: Event) -> None:
        """Write an event, if it is a line of a log."""
        if event.kind != "log":
            return
        told = event.payload
        left_out = self._allowance.take(told.get("left_out", 0))
        if left_out is None:
            return
        where = f"rank {event.rank}" + (f", {event.host}" if event.host else "")
        if left_out:
            tqdm.write(f"[{left_out} lines of members are left out]", file=self._stream)
        what = "" if told.get("logger") == _PRINTED else f"{told.get('level')} {told.get('logger')}: "
        tqdm.write(f"[{where}] {what}{told.get('message')}", file=self._stream)


def pass_on(event: Event) -> None:
    """Warn here of what a worker in another process has warned of with ``sparkdl.telemetry.emit.notify``."""
    if event.kind == "warning" and event.payload.get("process") != PROCESS:
        warnings.warn(f"rank {event.rank}: {event.payload['message']}", RuntimeWarning, stacklevel=2)
