"""A driver on the first of several hosts: a process that keeps one session and calls functions in it."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.hosts import LONG, until
from tests.sessions import session

LOST = 10
"""Seconds after which master and drivers give up a silent host; Spark's own values are one and two minutes."""

PATIENCE = 300.0
"""Seconds that a call may take."""


def serve(master: str, address: str, folder: str, executors: int, cores: int, settings: dict[str, str]) -> None:
    """The driver: in one session, call the functions that standard input names, until it ends.

    Spark spreads the executors over the hosts, and gives each one a task before any gets a second one. ``settings`` of
    the session have the names of ``tests.sessions.session``.
    """
    defaults = {
        "driver__host": address,
        "driver__bindAddress": address,
        "cores__max": str(executors * cores),
        "executor__cores": str(cores),
        "executor__memory": "1g",
        # By default tasks follow rows that lie on one host, all workers to the same.
        "shuffle__reduceLocality__enabled": "false",
        "network__timeout": f"{LOST}s",
        "network__timeoutInterval": "2s",
        "executor__heartbeatInterval": "2s",
        # An executor gives up a silent driver after so many: by default sixty, ten minutes and more.
        "executor__heartbeat__maxFailures": "5",
    }
    with session(folder, master, **defaults | settings):
        for line in sys.stdin:
            module, name, arguments, path = json.loads(line)
            print(f"{time.strftime('%X')} {name}", flush=True)
            faulthandler.dump_traceback_later(PATIENCE - 10)
            answer: dict[str, Any] = {}
            try:
                answer["value"] = getattr(importlib.import_module(module), name)(*arguments)
            except Exception:
                answer["error"] = traceback.format_exc()
            faulthandler.cancel_dump_traceback_later()
            print(f"{time.strftime('%X')} done", flush=True)
            Path(f"{path}.tmp").write_text(json.dumps(answer))
            os.replace(f"{path}.tmp", path)


def settle(addresses: list[str]) -> None:
    """Wait until this driver has exactly one executor on each of these hosts."""
    scheduler = SparkSession.active().sparkContext._jsc.sc().taskScheduler()

    def executors(address: str) -> int:
        alive = scheduler.getExecutorsAliveOnHost(address)
        return alive.get().size() if alive.isDefined() else 0

    until(lambda: all(executors(address) == 1 for address in addresses), f"an executor on each of {addresses}")


class Driver:
    """A process on a host that calls functions in its session, one at a time; its answers lie beside its output."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path) -> None:
        self.pid = process.pid
        self._process, self._out, self._calls = process, out, 0

    @property
    def output(self) -> str:
        return self._out.read_text(errors="replace")

    @property
    def idle(self) -> bool:
        """Whether it lives and has answered all calls."""
        return self._process.poll() is None and (self._calls == 0 or self._answer.exists())

    def call(self, function: Callable[..., Any], *arguments: Any) -> Driver:
        """Call a top-level function there; ``result()`` waits for it."""
        assert self.idle, f"the driver has ended, or is busy\n{self.output}"
        self._calls += 1
        line = json.dumps([function.__module__, function.__qualname__, arguments, self._answer], default=str)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()
        return self

    def result(self, timeout: float = PATIENCE) -> Any:
        """What the last call returned."""
        self.until(self._answer.exists, "its answer", timeout=timeout)
        answer = json.loads(self._answer.read_text())
        assert "error" not in answer, f"{self.output}\n{answer['error']}"
        return answer["value"]

    def until(self, condition: Callable[[], Any], what: str, *, timeout: float = LONG) -> Any:
        """Wait until something holds while the driver works on its last call."""

        def holds() -> Any:
            answered = self._answer.exists()
            if value := condition():
                return value
            assert self._process.poll() is None, f"the driver has ended before {what}\n{self.output}"
            assert not answered, f"the driver has answered before {what}: {self._answer.read_text()}\n{self.output}"
            return None

        try:
            return until(holds, what, timeout=timeout)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.output}") from None

    def code(self) -> int:
        """Its exit code, once it has ended."""
        return self._process.wait(LONG)

    def end(self) -> None:
        """Let it stop its session and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self.code() == 0, self.output

    def kill(self) -> None:
        """SIGKILL for the driver and its JVM; returns when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.code()

    @property
    def _answer(self) -> Path:
        return self._out.with_suffix(f".{self._calls}.json")
