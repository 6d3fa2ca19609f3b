"""A bagging whose executor is killed while it trains: what is trained again, and what is not.

    python examples/ensemble_recovery.py

Six networks train on scikit-learn's digits in six tasks on two executors of this machine, each a process. When the
fourth begins, the executor that it begins on is killed. Spark starts another one and runs again what is missing:
members that had finished lie in runDir, and are read from there. Then the same fit is asked for eight members.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from pyspark import TaskContext
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits
from torch import nn

from sparkdl import Bagging, TorchClassifier

FOURTH = 4


@dataclass(frozen=True)
class Begins:
    """Adds a line to a file when a member begins to train: its number and its executor's process."""

    file: str

    def on_start(self, run: Any) -> None:
        member = TaskContext.get().partitionId()  # a task for each member, in their order
        # Spark's Python workers are children of a daemon of Python, and that is one of the executor.
        executor = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
        with Path(self.file).open("a") as lines:
            lines.write(f"{member} {executor}\n")


def begun(file: Path) -> list[tuple[int, int]]:
    """The member and the executor of each line."""
    return [tuple(map(int, line.split())) for line in file.read_text().splitlines()]


def kill(file: Path, killed: list[int]) -> None:
    while len(lines := begun(file)) < FOURTH:
        time.sleep(0.02)
    killed.append(lines[-1][1])
    os.kill(killed[0], signal.SIGKILL)


def table(lines: list[tuple[int, int]], killed: list[int]) -> None:
    executors = defaultdict(list)
    for member, executor in lines:
        executors[member].append(f"{executor} (killed)" if executor in killed else str(executor))
    print("member  begun  on the executors, by their processes")
    for member, found in sorted(executors.items()):
        print(f"{member:6d}  {len(found):5d}  {', '.join(found)}")


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    file, killed = folder / "begun", list[int]()
    file.touch()
    images, labels = load_digits(return_X_y=True)
    pixels = pa.array(list((images / 16).astype("float32")))
    rows = pa.table({"id": pa.array(range(len(labels))), "features": pixels, "label": pa.array(labels)})
    net = TorchClassifier(
        model=partial(nn.Linear, 64, 10),
        optimizer=partial(torch.optim.Adam, lr=0.005),
        epochs=40,
        callbacks=[Begins(str(file))],
    )
    with SparkSession.builder.master("local-cluster[2,1,1024]").appName("recovery").getOrCreate() as spark:
        data = spark.createDataFrame(rows)
        bagging = Bagging(base=net, numModels=6, idCol="id", runDir=str(folder / "run"))
        threading.Thread(target=kill, args=(file, killed), daemon=True).start()
        first = bagging.fit(data)
        lines = begun(file)
        table(lines, killed)
        print(f"six members, one executor killed: {len(first.models)} models, {len(lines) - 6} begun twice")

        second = bagging.setNumModels(8).fit(data)
    print(f"eight members: trained {second.report['trained']}, finished before {second.report['restored']}")
    print(f"begun since: {len(begun(file)) - len(lines)}")


if __name__ == "__main__":
    main()
