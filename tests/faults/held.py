"""A member that waits at a chosen step until somebody outside has done to it, or to its host, what he wants."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
