"""A fault at a chosen rank, step and phase; it happens once, in the first attempt that comes there."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.hosts import until

PHASES = (
    *("decode", "joined", "feed", "backward", "reduce", "step"),
    *("validation", "shard", "written", "manifest", "rename", "renamed"),
)

SLOW = 4.0  # seconds that a slow worker loses


@dataclass(frozen=True)
class Fault:
    """A callback that ends, stops or fails the worker that calls it.

    Attributes:
        how: ``"kill"`` (SIGKILL), ``"stop"`` (SIGSTOP), ``"fail"`` (an exception), ``"full"`` (no space left on the
            device), ``"slow"``, ``"nan"`` (a gradient, in the phase ``"backward"``); ``"orphan"`` kills the driver,
            which leads the worker's session, ``"executor"`` the Spark executor of this process; ``"freeze"`` stops the
            whole process group; ``"hold"`` waits for a file ``<mark>.go``, which a test makes, or a second process at
            the same place, and leaves ``<mark>.late`` if neither does.
        rank: of the worker.
        step: the step in which, after which, or of whose checkpoint; see ``phase``. Before the first step: how many
            faults with marks in the same folder must have happened.
        mark: a new file, made with host and pid when the fault happens, so that it happens once.
        phase: where.

            before the first step  ``"arrival"``, when the first worker of any rank gets its columns (needs ``Decode``);
                                   ``"decode"``, while rows are read and workers meet (needs ``Decode``); ``"joined"``,
                                   when the work arrives, right after the rendezvous
            in a step              ``"feed"``, as its batch is made, ahead and in another thread (needs ``fed``);
                                   ``"forward"``, as the module is called; ``"backward"``, on the last gradient, the
                                   peers in the all-reduce; ``"reduce"``, this worker in it too; ``"step"``, after it;
                                   ``"push"`` and ``"pull"``, before a worker pushes gradients to the first parameter
                                   shard of another worker, and before it reads the answer
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

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        joined = self.phase == "joined" and os.environ.get("RANK") == str(self.rank)  # set by the rendezvous
        if joined or self.phase == "arrival":
            self.early()

    def on_start(self, run: Any) -> None:
        from tests.faults.places import watch  # which imports this class

        watch(self, run)

    def on_step(self, run: Any) -> None:
        if self.phase == "step" and (run.rank, run.clock.step) == (self.rank, self.step):
            self.strike()

    def early(self) -> None:
        """Strike before the first step, if enough others did."""
        if len(os.listdir(os.path.dirname(self.mark))) >= self.step:
            self.strike()

    def strike(self) -> bool:
        """Happen, unless it happened before; whether it happened now."""
        try:
            with open(self.mark, "x", encoding="utf-8") as mark:
                mark.write(f"{socket.gethostname()} {os.getpid()}")
        except FileExistsError:
            if self.how == "hold":
                Path(f"{self.mark}.go").touch()
            return False
        _WAYS[self.how](self.mark)
        return True


def executor_of(pid: int) -> int:
    """The pid of the Spark executor above a process."""
    above = psutil.Process(pid).parents()
    return next(process.pid for process in above if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()))


def _fail(mark: str) -> None:
    raise LookupError("a fault on purpose")


def _full(mark: str) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def _kill_executor(mark: str) -> None:
    os.kill(executor_of(os.getpid()), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)  # this process would end with its daemon, a little later


def _hold(mark: str) -> None:
    try:
        until(Path(f"{mark}.go").exists, f"{mark}.go")
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
