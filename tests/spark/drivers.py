"""Spark drivers that are processes of their own. Each returns the values of its test, as JSON."""

from __future__ import annotations

import os
import re
import select
import signal
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sparkdl.errors import SparkdlError
from sparkdl.ml.estimator import TorchRegressor
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

    with session(folder) as spark:
        data, case = frame(numbers()), Case(batch_size=10, epochs=1_000_000)
        caught = False
        try:
            SparkCluster(spark, 2).gang(case.training(AllReduce()), data, case.columns(), listener=listener)
        except KeyboardInterrupt:
            caught = True
        files = (path for path in Path(folder).rglob("*") if path.is_file())
        return {
            "interrupted": caught,
            "active jobs": list(spark.sparkContext.statusTracker().getActiveJobsIds()),
            "workers": len(workers),
            "still alive": [pid for pid, end in workers.items() if not select.select([end], [], [], 30.0)[0]],
            # Spark puts its own files into folders of folders.
            "left on disk": [str(path) for path in files if re.search(r"/(blockmgr-[^/]*/|tmp)[^/]*$", str(path))],
            "open while it ran": len(open_while_it_ran),
            "still open": opened(folder),
            "steps of the next fit": regression().fit(data).history[-1]["step"],
        }


def regression() -> TorchRegressor:
    sgd = partial(torch.optim.SGD, lr=0.1)
    return TorchRegressor(model=work.Net, inputCols=["x"], labelCol="y", numWorkers=2, batchSize=10, optimizer=sgd)


def opened(folder: str) -> list[str]:
    """Files of Python processes, mapped or open, that lie in ``folder`` without a name any more."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"pyspark" not in (process / "cmdline").read_bytes():
                continue
            links = [os.readlink(link) for link in (process / "fd").iterdir()]
            maps = (process / "maps").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended meanwhile
        found += [line for line in (*links, *maps) if folder in line and "(deleted)" in line]
    return found


def encrypted(folder: str) -> dict[str, Any]:
    """A session whose traffic is encrypted, without and with the permission to run."""
    secret = {"authenticate": "true", "authenticate__secret": "of these tests"}
    with session(folder, **secret, network__crypto__enabled="true", io__encryption__enabled="true") as spark:
        try:
            error = str(SparkCluster(spark, 2).gang(work.total))
        except SparkdlError as raised:
            error = type(raised).__name__
        return {"error": error, "allowed": SparkCluster(spark, 2, allow_unencrypted=True).gang(work.total)}
