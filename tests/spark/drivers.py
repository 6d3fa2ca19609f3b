"""Spark drivers that are processes of their own. Each returns the values of its test, as JSON."""

from __future__ import annotations

import os
import re
import select
import signal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from sparkdl.errors import InvalidInput
from sparkdl.spark.cluster import SparkCluster
from sparkdl.telemetry.event import Event
from sparkdl.training.strategies.allreduce import AllReduce
from tests.contracts import work
from tests.contracts.strategy_contract import Case, numbers
from tests.sessions import frame, session


def interrupted(folder: str) -> dict[str, Any]:
    """Ctrl-C at the first sign of progress, and what is left of the job then."""
    workers: dict[int, int] = {}
    open_while_it_ran: list[str] = []

    def listener(event: Event) -> None:
        if event.kind == "started":
            workers[event.payload["pid"]] = os.pidfd_open(event.payload["pid"])
        if event.kind == "progress" and not open_while_it_ran:
            open_while_it_ran.extend(opened(folder))
            os.kill(os.getpid(), signal.SIGINT)

    def training(data: DataFrame, epochs: int) -> list[Any]:
        case = Case(batch_size=10, epochs=epochs)
        return SparkCluster(spark, 2).gang(case.training(AllReduce()), data, case.columns(), listener=listener)

    with session(folder) as spark:
        data = frame(numbers())
        with pytest.raises(KeyboardInterrupt):
            training(data, epochs=1_000_000)
        files = (path for path in Path(folder).rglob("*") if path.is_file())
        return {
            "active jobs": list(spark.sparkContext.statusTracker().getActiveJobsIds()),
            "workers": len(workers),
            "still alive": [pid for pid, end in workers.items() if not select.select([end], [], [], 30.0)[0]],
            # Spark puts its own files into folders of folders.
            "left on disk": [str(path) for path in files if re.search(r"/(blockmgr-[^/]*/|tmp)[^/]*$", str(path))],
            "open while it ran": len(open_while_it_ran),
            "still open": opened(folder),
            "steps of the next training": training(data, epochs=1)[0].history[-1]["step"],
        }


def opened(folder: str) -> list[str]:
    """Files of Python processes, mapped or open, that lie in ``folder`` without a name any more."""
    result = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"pyspark" not in (process / "cmdline").read_bytes():
                continue
            links = [os.readlink(link) for link in (process / "fd").iterdir()]
            maps = (process / "maps").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended meanwhile
        result += [line for line in (*links, *maps) if folder in line and "(deleted)" in line]
    return result


def encrypted(folder: str) -> list[Any]:
    """A session whose traffic is encrypted, without and with the permission to run."""
    secret = {"authenticate": "true", "authenticate__secret": "of these tests"}
    with session(folder, **secret, network__crypto__enabled="true", io__encryption__enabled="true") as spark:
        with pytest.raises(InvalidInput, match="allowUnencrypted=True"):
            SparkCluster(spark, 2).gang(work.total)
        return SparkCluster(spark, 2, allow_unencrypted=True).gang(work.total)
