"""Faults at a chosen rank and step, each of which happens once, in whatever attempt comes there first."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Fault:
    """A hook that ends, stops or fails the member it is called on.

    Attributes:
        how: ``"kill"`` (SIGKILL), ``"stop"`` (SIGSTOP) or ``"fail"`` (an exception).
        rank: of the member.
        step: after which it happens.
        mark: a file that does not exist; it is made when the fault happens, and keeps it from happening again.
    """

    how: str
    rank: int
    step: int
    mark: str

    every_rank = True

    def on_step(self, run: Any) -> None:
        """Be the fault, if the time has come."""
        if (run.rank, run.clock.step) != (self.rank, self.step) or not self._first():
            return
        if self.how == "fail":
            raise LookupError("a fault on purpose")
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[self.how])

    def _first(self) -> bool:
        try:
            os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


@dataclass(frozen=True)
class Held:
    """A hook that holds a member at a step, once, until somebody who watches from outside has done what he wants.

    Attributes:
        rank: of the member.
        step: after which it waits.
        mark: a file that does not exist; it is made, with host and pid, when the member waits. ``<mark>.go``, which
            the other side makes, lets it go on.
    """

    rank: int
    step: int
    mark: str

    every_rank = True

    def on_step(self, run: Any) -> None:
        """Wait, if the time has come."""
        mark, go = Path(self.mark), Path(f"{self.mark}.go")
        if (run.rank, run.clock.step) != (self.rank, self.step) or mark.exists():
            return
        written = Path(f"{self.mark}.tmp")
        written.write_text(f"{socket.gethostname()} {os.getpid()}")
        written.rename(mark)
        ends = time.monotonic() + 60
        while not go.exists():
            if time.monotonic() > ends:
                raise TimeoutError(f"nobody made {go}")
            time.sleep(0.02)


def flip(path: str | os.PathLike[str], place: int = -1) -> None:
    """Change one bit of a file."""
    with open(path, "r+b") as file:
        file.seek(place, os.SEEK_END if place < 0 else os.SEEK_SET)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
