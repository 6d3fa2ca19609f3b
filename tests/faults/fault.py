"""A fault at a chosen rank, step and phase, which happens once, in whatever attempt comes there first."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.held import wait_for

PHASES = (
    *("decode", "joined", "feed", "backward", "reduce", "step"),
    *("validation", "shard", "written", "manifest", "rename", "renamed"),
)

SLOW = 4.0  # seconds that a slow member loses


@dataclass(frozen=True)
class Fault:
    """A hook that ends, stops or fails the member it is called on.

    Attributes:
        how: ``"kill"`` (SIGKILL), ``"stop"`` (SIGSTOP), ``"fail"`` (an exception), ``"full"`` (no space left on the
            device), ``"slow"``, ``"nan"`` (a gradient, in the phase ``"backward"``); ``"orphan"`` kills the driver,
            which leads the member's session, ``"freeze"`` stops the whole process group, ``"executor"`` kills the
            Spark executor that it works for, ``"hold"`` waits for a file ``<mark>.go``, which somebody outside makes,
            or whoever comes to the same place, and leaves ``<mark>.late`` where nobody does.
        rank: of the member.
        step: the step in which, after which, or whose checkpoint; see ``phase``. Before the first step: how many
            faults with marks in the same folder have happened before.
        mark: a file that does not exist; it is made when the fault happens, and keeps it from happening again.
        phase: where.

            before the first step  ``"decode"``, while rows are read and members meet (needs ``Decode``); ``"joined"``,
                                   when the work arrives, right after the rendezvous
            in a step              ``"feed"``, as its batch is made, ahead of time and in another thread (needs
                                   ``fed``); ``"backward"``, on the last gradient, the peers in the all-reduce;
                                   ``"reduce"``, this member in it too; ``"step"``, after it
            after an epoch         ``"validation"``
            in a checkpoint        ``"shard"``, half of one written; ``"written"``, one written but not yet in its
                                   place; ``"manifest"``, half of it written; ``"rename"`` and ``"renamed"``, right
                                   before and after the manifest comes into its place
    """

    how: str
    rank: int
    step: int
    mark: str
    phase: str = "step"

    every_rank = True

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """A member has its rank in the environment from the rendezvous on."""
        self.__dict__.update(state)
        if self.phase == "joined" and os.environ.get("RANK") == str(self.rank):
            self.early()

    def on_start(self, run: Any) -> None:
        """Wait at the place where it is to happen."""
        from tests.faults.places import watch  # which needs this class

        watch(self, run)

    def on_step(self, run: Any) -> None:
        """Be the fault, if the time has come."""
        if self.phase == "step" and (run.rank, run.clock.step) == (self.rank, self.step):
            self.strike()

    def early(self) -> None:
        """Be the fault, before the first step, if enough others have been."""
        if len(os.listdir(os.path.dirname(self.mark))) >= self.step:
            self.strike()

    def strike(self) -> bool:
        """Happen, unless it has before; whether it has now."""
        try:
            os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            if self.how == "hold":
                Path(f"{self.mark}.go").touch()
            return False
        _WAYS[self.how](self.mark)
        return True


def _fail(mark: str) -> None:
    raise LookupError("a fault on purpose")


def _full(mark: str) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def _kill_executor(mark: str) -> None:
    pid = os.getpid()
    while b"CoarseGrainedExecutorBackend" not in Path("/proc", str(pid), "cmdline").read_bytes():
        pid = int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)  # this process would end with its daemon, a little later


def _hold(mark: str) -> None:
    try:
        wait_for(Path(f"{mark}.go"))
    except TimeoutError:
        Path(f"{mark}.late").touch()
        raise


_WAYS: dict[str, Callable[[str], None]] = {
    "kill": lambda mark: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda mark: os.kill(os.getpid(), signal.SIGSTOP),
    "fail": _fail,
    "full": _full,
    "slow": lambda mark: time.sleep(SLOW),
    "nan": lambda mark: None,
    "orphan": lambda mark: os.kill(os.getsid(0), signal.SIGKILL),
    "freeze": lambda mark: os.killpg(0, signal.SIGSTOP),
    "executor": _kill_executor,
    "hold": _hold,
}
