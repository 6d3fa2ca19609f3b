"""Members that wait: for somebody outside who does harm to them or to their hosts, or for ever."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LONG = 60.0
"""Seconds after which nobody will come any more."""


def wait_for(path: Path) -> None:
    """Wait until somebody makes a file.

    Raises:
        TimeoutError: nobody does.
    """
    ends = time.monotonic() + LONG
    while not path.exists():
        if time.monotonic() > ends:
            raise TimeoutError(f"nobody made {path}")
        time.sleep(0.02)


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
        wait_for(go)


@dataclass(frozen=True)
class StopsOnArrival:
    """A column's ``decode`` that stops the first member that it comes to, before that has said anything."""

    mark: str

    def __setstate__(self, state: dict[str, str]) -> None:
        self.__dict__.update(state)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGSTOP)

    def __call__(self, value: bytes) -> np.ndarray:
        return np.frombuffer(value, np.int64)
