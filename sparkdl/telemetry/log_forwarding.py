"""Forwarding of workers' log records and printed lines to the driver.

On a worker, ``forwarding`` turns log records and printed lines (level INFO) into events of kind ``"log"``. On the
driver, ``WorkerLogs`` writes the lines with their rank: ``[rank 1, worker-3] WARNING torch.nn: ...``. Each worker and
the driver limit the lines to ``RATE`` a second and ``BURST`` at once, and report how many they dropped.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TextIO

from sparkdl.io.fields import checked, one_of
from sparkdl.telemetry.emit import PROCESS, record
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.progress_bar import Bar

LEVELS = ("debug", "info", "warning", "error", "off")
RATE = 20.0
BURST = 100

_PRINTED = "print"
_LONGEST = 10_000  # characters of a line that are forwarded


def level_of(name: str) -> int | None:
    """The ``logging`` number of a level, None for ``"off"``; raises InvalidInput if the level is not in ``LEVELS``."""
    checked(name, Annotated[str, one_of(LEVELS)], "the level of logs")
    return None if name == "off" else int(getattr(logging, name.upper()))


class RateLimiter:
    """A rate limiter: ``rate`` lines a second, ``burst`` lines at once; ``now`` is an increasing clock in seconds."""

    def __init__(self, rate: float = RATE, burst: float = BURST, now: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._now = rate, burst, now
        self._left, self._time, self._dropped = float(burst), now(), 0
        self._lock = threading.RLock()  # reentrant: a signal handler that logs may interrupt logging

    def take(self, dropped: int = 0) -> int | None:
        """Request one line, before which ``dropped`` lines did not reach this limiter.

        Returns the lines dropped since the last granted one, or None if this line must be dropped.
        """
        with self._lock:
            now = self._now()
            self._left = min(self._burst, self._left + (now - self._time) * self._rate)
            self._time = now
            self._dropped += dropped
            if self._left < 1:
                self._dropped += 1
                return None
            self._left -= 1
            dropped, self._dropped = self._dropped, 0
            return dropped


@contextlib.contextmanager
def forwarding(level: int | None) -> Iterator[None]:
    """Forward log records of this level or higher and, at INFO or lower, printed lines; None forwards nothing.

    Loggers' own levels still apply. Py4J's records are dropped: they concern the connection to the driver.
    """
    if level is None:
        yield
        return
    root = logging.getLogger()
    before, handler = root.level, _Forwarder(level, None if root.handlers else logging.lastResort)
    root.addHandler(handler)
    root.setLevel(min(before, level) or level)
    stream = _TeeStream(sys.stdout, handler)
    try:
        with contextlib.redirect_stdout(stream) if level <= logging.INFO else contextlib.nullcontext():
            yield
    finally:
        stream.end_line()
        root.setLevel(before)
        root.removeHandler(handler)


class _Forwarder(logging.Handler):
    def __init__(self, level: int, last: logging.Handler | None) -> None:
        super().__init__(level)
        self._limiter, self._last = RateLimiter(), last

    def emit(self, entry: logging.LogRecord) -> None:
        if self._last is not None and entry.levelno >= self._last.level:
            self._last.handle(entry)
        if entry.name.partition(".")[0] == "py4j" or entry.name.startswith("sparkdl.telemetry.recorder"):
            return
        try:
            self.send(entry.levelname, entry.name, self.format(entry))
        except Exception:  # a record whose arguments do not fit its message
            self.handleError(entry)

    def send(self, level: str, name: str, message: str, missing: int = 0) -> None:
        missing += len(message[_LONGEST:])
        mark = f" [{missing} more characters are not forwarded]" if missing else ""
        if (left_out := self._limiter.take()) is not None:
            record("log", level=level, logger=name, message=message[:_LONGEST] + mark, left_out=left_out)


class _TeeStream:
    def __init__(self, stream: TextIO, forwarder: _Forwarder) -> None:
        self._stream, self._forwarder, self._line, self._missing = stream, forwarder, "", 0

    def write(self, text: str) -> int:
        written = self._stream.write(text)
        for number, part in enumerate(text.split("\n")):
            if number:
                self.end_line()
            line = self._line + part
            self._line, self._missing = line[:_LONGEST], self._missing + len(line[_LONGEST:])
        return written

    def end_line(self) -> None:
        if self._line.strip() or self._missing:
            self._forwarder.send("INFO", _PRINTED, self._line, self._missing)
        self._line, self._missing = "", 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class WorkerLogs:
    """A listener that writes workers' lines to ``stream`` (default: standard error), above a progress bar if any."""

    def __init__(self, stream: TextIO | None = None, limiter: RateLimiter | None = None) -> None:
        self._stream, self._limiter = stream or sys.stderr, limiter or RateLimiter()

    def __call__(self, event: Event) -> None:
        """Write a log event; other kinds are ignored."""
        payload = event.payload
        if event.kind != "log" or (left_out := self._limiter.take(payload.get("left_out", 0))) is None:
            return
        if left_out:
            Bar.write(f"[{left_out} lines of workers were dropped]", file=self._stream)
        source = f"rank {event.rank}" + (f", {event.host}" if event.host else "")
        logger = "" if payload.get("logger") == _PRINTED else f"{payload.get('level')} {payload.get('logger')}: "
        Bar.write(f"[{source}] {logger}{payload.get('message')}", file=self._stream)


def pass_on(event: Event) -> None:
    """Repeat here the warning that a worker in another process issued by ``sparkdl.telemetry.emit.notify``."""
    if event.kind == "warning" and event.payload.get("process") != PROCESS:
        warnings.warn(f"rank {event.rank}: {event.payload['message']}", RuntimeWarning, stacklevel=2)
