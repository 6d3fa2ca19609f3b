"""A worker that is stopped on arrival."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass

import numpy as np


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
