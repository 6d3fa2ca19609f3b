"""Follows event files while workers write them, for a driver that no worker reaches.

A thread passes on each complete new line, about a second after it was written. HDFS and object stores have no lines
that are appended, but files, which appear up to ``event_file.SECONDS`` late.

The folder may have events of earlier fits, and a worker of an earlier fit may still append to its file. An event counts
if the first event of its recorder was written after the tail began. It arrives once, and without ``received``: its
delay says nothing of clocks.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from sparkdl.errors import InvalidInput
from sparkdl.io.files import Folder, local_path
from sparkdl.io.redaction import masked, public
from sparkdl.io.threads import OBSERVING, warn
from sparkdl.telemetry.event import Event, SafeCallback

_PAUSE, _REMOTE_PAUSE = 1.0, 5.0  # seconds between two looks at a local or mounted folder, and at another one


class EventTail(AbstractContextManager["EventTail"]):
    """Passes the events that workers write from now on to a listener, from a thread, one at a time.

    No error leaves it: a folder that cannot be read costs events and one warning.

    Args:
        folder: the workers' folder of event files, a path or URI; it need not exist. None follows nothing.
        listener: receives each event; its first exception is logged.
        attempt: of the workers; default: any.
    """

    def __init__(self, folder: str | None, listener: Callable[[Event], None], *, attempt: int | None = None) -> None:
        number = r"\d+" if attempt is None else str(attempt)
        self._names = re.compile(rf"rank-\d+\.attempt-{number}\..*jsonl")  # the dot: attempt 1 is not attempt 10
        self._listener = SafeCallback(listener)
        self._at: dict[str, int] = {}  # how far each file is read, in bytes
        self._last: dict[str, int] = {}  # number of each recorder's last event
        self._warned, self._ended, self._given_up = False, threading.Event(), False
        self._thread: threading.Thread | None = None
        if folder is None:
            return
        self._place = public(folder)
        try:
            self._folder, self._pause = Folder.of(folder), _REMOTE_PAUSE if local_path(folder) is None else _PAUSE
            self._at = self._sizes()
            self._thread = threading.Thread(target=self._follow, name="sparkdl-event-tail", daemon=True)
            self._thread.start()
        except Exception as error:  # a filesystem may raise anything, but only events may be lost
            self._warn(error)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Pass on what is written by now, for at most ``OBSERVING`` seconds, and end; later calls do nothing."""
        if self._thread is None or self._ended.is_set():
            return
        self._ended.set()
        self._thread.join(OBSERVING)
        if self._thread.is_alive():
            self._given_up = True
            warn(f"reading the events in {self._place} does not end within {OBSERVING:g} s")

    def _follow(self) -> None:
        while not self._ended.wait(self._pause):
            self._look()
        self._look()

    def _look(self) -> None:
        try:
            for name, size in sorted(self._sizes().items()):
                if size > self._at.get(name, 0):
                    self._read(name, size)
        except Exception as error:  # the next look may succeed
            self._warn(error)

    def _sizes(self) -> dict[str, int]:
        return {name: size for name, size in self._folder.sizes("").items() if self._names.fullmatch(name)}

    def _read(self, name: str, size: int) -> None:
        begin = self._at.get(name, 0)
        with self._folder.open_file(name) as file:
            data = bytes(file.read_at(size - begin, begin))
        end = data.rfind(b"\n") + 1  # the last line may be half written
        self._at[name] = begin + end
        for line in data[:end].splitlines():
            with suppress(InvalidInput):  # the line of a process that died in it
                self._pass_on(Event.from_json(line))

    def _pass_on(self, event: Event) -> None:
        last = self._last.get(event.recorder)
        if self._given_up or (event.number != 1 if last is None else event.number <= last):
            return
        self._last[event.recorder] = event.number
        self._listener(event)

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            reason = f"{type(error).__name__}: {masked(str(error))}"
            warn(f"live events are missing, since {self._place} cannot be read: {reason}")
