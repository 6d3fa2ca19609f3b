"""Workers that wait for a test that harms them or their hosts, or for ever."""

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
"""Seconds after which an expected event did not happen."""


def wait_for(path: Path) -> None:
    """Wait until a file exists, or raise ``TimeoutError``."""
    ends = time.monotonic() + LONG
    while not path.exists():
        if time.monotonic() > ends:
            raise TimeoutError(f"{path} does not exist after {LONG} s")
        time.sleep(0.02)


@dataclass(frozen=True)
class Held:
    """A hook that holds a worker after a step, once.

    Attributes:
        rank: of the worker.
        mark: a new file, made with host and pid when the worker waits; it waits for ``<mark>.go``.
    """

    rank: int
    step: int
    mark: str

    every_rank = True

    def on_step(self, run: Any) -> None:
        mark = Path(self.mark)
        if (run.rank, run.clock.step) != (self.rank, self.step) or mark.exists():
            return
        written = Path(f"{self.mark}.tmp")
        written.write_text(f"{socket.gethostname()} {os.getpid()}")
        written.rename(mark)
        wait_for(Path(f"{self.mark}.go"))


@dataclass(frozen=True)
class StopsOnArrival:
    """A column's ``decode`` that stops the first worker that receives it, before its first message."""

    mark: str

    def __setstate__(self, state: dict[str, str]) -> None:
        self.__dict__.update(state)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGSTOP)

    def __call__(self, value: bytes) -> np.ndarray:
        return np.frombuffer(value, np.int64)
