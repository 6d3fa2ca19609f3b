"""Spark drivers on the head of several hosts. The first argument is the fields of a ``Place``; all is JSON."""

from __future__ import annotations

import hashlib
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyspark.ml.evaluation import MulticlassClassificationEvaluator

from sparkdl import TorchClassifier, TorchModel
from sparkdl.checkpoint import Checkpoints
from sparkdl.errors import SparkdlError
from sparkdl.feed.columns import Column
from sparkdl.feed.part import Part
from sparkdl.keeper import CheckpointKeeper, Every
from sparkdl.spark.cluster import SparkCluster
from sparkdl.supervisor import Supervisor
from sparkdl.world import World
from tests.cluster.standalone import Place
from tests.faults import Held
from tests.ml import nets
from tests.sessions import frame
from tests.test_resume import CASES, data

SILENCE = 4.0
"""Seconds without a sign of life after which a member is given up."""


def peers(world: World, part: Part | None) -> dict[str, Any]:
    """A member's host and address, and the addresses that it has connections with after an all-reduce."""
    world.group().sum_(torch.ones(1 << 20))
    return {"host": world.host, "connected": sorted(_connected())}


def _connected() -> set[str]:
    own = {path.readlink().name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    found = set()
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if f"socket:[{fields[9]}]" in own and fields[3] == "01":  # established
            found.add(socket.inet_ntoa(int(fields[2].partition(":")[0], 16).to_bytes(4, "little")))
    return found


def meet(place: dict[str, str], size: int) -> list[dict[str, Any]]:
    """A gang whose members only meet."""
    with Place(**place).session(size) as spark:
        return SparkCluster(spark, size).gang(peers)


def fit(place: dict[str, str], folder: str, case: str, size: int = 2, hold: dict[str, Any] | None = None) -> Any:
    """One of the cases of ``tests.test_resume`` with a checkpoint every two steps, in spite of what happens.

    Args:
        place: where the driver runs.
        folder: of the run.
        case: which case.
        size: members.
        hold: the fields of a ``Held``, a hook that waits at a step for somebody to do harm.
    """
    training, columns = CASES[case]()
    rows = data()
    rows["row"] = np.arange(len(rows["x"]))
    keeper = CheckpointKeeper(Checkpoints(f"{folder}/checkpoints", run="a run"), Every(2, "steps"))
    hooks = [*training.hooks, *([] if hold is None else [Held(**hold)])]
    with Place(**place).session(size) as spark:
        supervisor = Supervisor(SparkCluster(spark, size), back_off=0.1, heartbeat_timeout=SILENCE)
        trained = supervisor.gang(
            replace(training, keeper=keeper, hooks=hooks),
            frame(rows),
            replace(columns, row_id=Column("row", "int64")),
            attempt=keeper.checkpoints.next_attempt(),
        )
        hosts = {member["host"] for member in SparkCluster(spark, size).gang(peers)}
    return {
        "weights": hashlib.sha256(trained[0].weights).hexdigest(),
        "history": [[row["step"], row["samples"], row["loss"]] for row in trained[0].history],
        "failures": [[type(error).__name__, error.rank, error.host, str(error)] for error in supervisor.failures],
        "hosts": sorted(hosts),
    }
