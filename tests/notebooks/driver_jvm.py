"""A JVM that is the Spark driver of several Pythons, one after another: each start of a JVM takes seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch


@dataclass(frozen=True)
class DriverJvm:
    """A JVM that runs.

    Attributes:
        environment: with these variables, pyspark in another process uses this JVM in place of its own.
        log: the file that it writes into.
        gateway: this process's connection.
    """

    environment: Mapping[str, str]
    log: Path
    gateway: Any

    def stop_context(self) -> None:
        """Stop the SparkContext that a failed driver left behind."""
        companion = getattr(self.gateway.jvm, "org.apache.spark.SparkContext$")
        active = getattr(companion, "MODULE$").getActive()
        if active.isDefined():
            active.get().stop()


@contextmanager
def driver_jvm(folder: Path, environment: Mapping[str, str]) -> Iterator[DriverJvm]:
    """Start a JVM in an empty folder, with these variables as its environment, and end it."""
    from pyspark.java_gateway import launch_gateway

    log = folder / "log"
    with log.open("wb") as written:
        with patch.dict(os.environ, environment, clear=True):
            streams = {"cwd": folder, "stdout": written, "stderr": written}
            gateway: Any = launch_gateway(popen_kwargs=streams)  # type: ignore[no-untyped-call]
        java = gateway.java_parameters
        try:
            known = {"PYSPARK_GATEWAY_PORT": str(java.port), "PYSPARK_GATEWAY_SECRET": java.auth_token}
            yield DriverJvm(known, log, gateway)
        finally:
            gateway.shutdown()
            gateway.proc.stdin.close()  # the JVM ends with it
            gateway.proc.wait(60)
