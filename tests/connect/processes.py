"""A server of Spark Connect in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.sessions import EXECUTORS, ROOT, driver_environment


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        url: for clients.
        group: the process group of the server and its executors.
        call: runs a top-level function on the server's classic session, with arguments of JSON; returns its result.
    """

    url: str
    group: int
    call: Callable[..., Any]


CLIENT = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
"""The variables by which pyspark lets a process, and the processes that it starts, be clients."""


@contextlib.contextmanager
def serving(folder: Path, master: str = EXECUTORS) -> Iterator[Server]:
    """A server with files in ``folder``, and executors of ``master``."""
    environment = {name: value for name, value in driver_environment(folder).items() if name not in CLIENT}
    with open(folder / "errors", "wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.connect.server", str(folder), master],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    requests, answers = process.stdin, process.stdout

    def answer() -> Any:
        line = answers.readline()
        assert line, (folder / "errors").read_text(errors="replace")[-4000:]
        return json.loads(line)

    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        print(json.dumps([function.__module__, function.__name__, *arguments]), file=requests, flush=True)
        return answer()

    try:
        yield Server(f"sc://127.0.0.1:{answer()}", process.pid, call)
    finally:
        with contextlib.suppress(BrokenPipeError):
            requests.close()
        try:
            process.wait(60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            answers.close()
