"""Spark drivers that have to be processes of their own. Each returns what its test looks at, as JSON."""

from __future__ import annotations

import os
import select
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparkdl.errors import SparkdlError
from sparkdl.ml.estimator import TorchRegressor
from sparkdl.ml.model import TorchModel
from sparkdl.spark.cluster import SparkCluster
from sparkdl.telemetry.event import Event
from sparkdl.training.strategies.allreduce import AllReduce
from tests.contracts import work
from tests.contracts.single_process import single_process
from tests.contracts.strategy_contract import Case, numbers, together
from tests.sessions import frame, session
from tests.spark.work import Killed


def four_members(folder: str) -> dict[str, Any]:
    """A gang of four in one JVM: who is there, a run that equals a single process, and two ways to fail."""
    with session(folder, "local[4]") as spark:
        cluster, case, arrays = SparkCluster(spark, 4), Case(batch_size=10), numbers()
        found = cluster.gang(work.Fit(case.training(AllReduce())), frame(arrays), case.columns())
        expected = single_process(case.training(AllReduce()), arrays, case.columns(), together(found))
        return {
            "ranks": [member["rank"] for member in cluster.gang(work.who)],
            "total": cluster.gang(work.total),
            "rows": [member["report"]["rows"] for member in found],
            "distance": max(float(np.abs(found[0]["parameters"][name] - expected[name]).max()) for name in expected),
            "failure": failure(cluster, work.Fails(2, ValueError("no"))),
            "lost": failure(cluster, Killed(3))[0],
            "again": cluster.gang(work.total),
        }


def failure(cluster: SparkCluster, task: Any) -> list[Any]:
    try:
        cluster.gang(task)
    except SparkdlError as error:
        return [type(error).__name__, error.rank]
    return []


def interrupted(folder: str) -> dict[str, Any]:
    """Ctrl-C at the first sign of progress, and what is left of the job then."""
    members: dict[int, int] = {}
    open_while_it_ran: list[str] = []

    def listener(event: Event) -> None:
        if event.kind == "started":
            members[event.payload["pid"]] = os.pidfd_open(event.payload["pid"])
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
        return {
            "interrupted": caught,
            "active jobs": list(spark.sparkContext.statusTracker().getActiveJobsIds()),
            "members": len(members),
            "still alive": [pid for pid, handle in members.items() if not ended(handle)],
            "left on disk": left(folder),
            "open while it ran": len(open_while_it_ran),
            "still open": opened(folder),
            "steps of the next fit": regression().fit(data).history[-1]["step"],
        }


def regression() -> TorchRegressor:
    sgd = partial(torch.optim.SGD, lr=0.1)
    return TorchRegressor(model=work.Net, inputCols=["x"], labelCol="y", numWorkers=2, batchSize=10, optimizer=sgd)


def ended(handle: int) -> bool:
    """Whether the process behind a pidfd has ended, or does so soon."""
    readable, _, _ = select.select([handle], [], [], 30.0)
    return bool(readable)


def left(folder: str) -> list[str]:
    """Files on the local disks that are not Spark's, which puts its own into folders of folders there."""
    files = (path for path in Path(folder).rglob("*") if path.is_file())
    return [str(path) for path in files if path.parent.name.startswith("blockmgr-") or path.name.startswith("tmp")]


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
    """A session whose traffic is encrypted: gangs are refused until plain text is allowed."""
    secret = {"authenticate": "true", "authenticate__secret": "of these tests"}
    with session(folder, **secret, network__crypto__enabled="true", io__encryption__enabled="true") as spark:
        try:
            SparkCluster(spark, 2).gang(work.total)
            refused = None
        except SparkdlError as error:
            refused = type(error).__name__
        return {
            "refused": refused,
            "allowed": SparkCluster(spark, 2, allow_unencrypted=True).gang(work.total),
        }


def load_and_predict(folder: str) -> list[float]:
    """A saved model's predictions, in a process that has never seen the model made."""
    with session(f"{folder}/spark", "local[1]") as spark:
        loaded = TorchModel.load(f"{folder}/model")
        return [row["prediction"] for row in loaded.transform(spark.read.parquet(f"{folder}/data")).collect()]
