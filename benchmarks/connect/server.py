"""A Spark application that serves Connect, and runs measures in its classic session.

``python -m benchmarks.connect.server`` prints its port. Then each line of its input has a measure's name and arguments
as JSON, and each line of its output that measure's figure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.connect import measures
from benchmarks.session import ROOT, session

_SETTINGS = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.port": "0",
}
_CLIENT = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")  # with these, pyspark makes a process a client


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        url: for clients.
        run: runs the measure of this name in the classic session, with these arguments, and returns its figure.
    """

    url: str
    run: Callable[..., float]


@contextmanager
def serving() -> Iterator[Server]:
    """Start a server in another process, and stop the server at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.connect.server"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in _CLIENT},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    requests, answers = process.stdin, process.stdout
    assert requests is not None
    assert answers is not None

    def answer() -> Any:
        if not (line := answers.readline()):
            raise RuntimeError("the server has ended; its errors are above")
        return json.loads(line)

    def run(name: str, *arguments: Any) -> float:
        print(json.dumps([name, *arguments]), file=requests, flush=True)
        return float(answer())

    with process:  # its end closes the server's input, and waits for the server
        yield Server(f"sc://127.0.0.1:{answer()}", run)


def main() -> None:
    with session("connect", **_SETTINGS) as spark:
        service: Any = spark._jvm.org.apache.spark.sql.connect.service  # type: ignore[union-attr]
        print(getattr(getattr(service, "SparkConnectService$"), "MODULE$").localPort(), flush=True)
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            print(json.dumps(getattr(measures, name)(spark, *arguments)), flush=True)


if __name__ == "__main__":
    main()
