"""A small run of rounds to which faults happen: an algorithm logs its calls and lets faults happen.

Executors and processes import this: it imports nothing slow.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.inline import InlineCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import SparkdlError
from sparkdl.io.files import Folder
from sparkdl.io.serialization import pack_state, unpack_state
from sparkdl.rounds import Memory, State, Update
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.local_solvers import LocalSGDSolver
from sparkdl.rounds.loop import Rounds
from sparkdl.training.objective.objective import Objective
from tests.chaos.runs import Momentum
from tests.faults.fault import Fault
from tests.faults.places import watch_files

ROUNDS = 6
PARTS = 4
ROWS = 96
COLUMNS = Columns((InputColumn("x"),), InputColumn("y"), row_id=InputColumn("id", "int64"), floating="float64")

DRIVER = -1
"""The rank of faults that happen to the driver."""


@dataclass(frozen=True)
class Watched(ConsensusADMM):
    """An algorithm to which faults happen; its state also has the number of the round, from 0.

    It has all that can be lost: a state, memories of the shards, and a first round that is in no history. A fault's
    ``rank`` is the shard, or ``DRIVER``, and its ``step`` the number of the round. Phases are

        of a shard     ``"map"``, before it; ``"mapped"``, after it; ``"memory"``, half of its memory written;
                       ``"remembered"``, its memory written but not reported
        of the driver  ``"apply"``, all shards are mapped and nothing is saved; ``"shard"``, ``"written"``,
                       ``"manifest"``, ``"rename"`` and ``"renamed"`` of the checkpoint; ``"kept"``, before the next
                       round

    Attributes:
        folder: of ``calls``: a line for each mapped shard (``map``, round, shard, pid) and for each saved round
            (``kept``, round).
    """

    folder: str = ""
    faults: tuple[Fault, ...] = ()

    def init(self, objective: Any, seed: int) -> State:
        return {**super().init(objective, seed), "number": 0}

    def map(self, objective: Any, state: State, shard: Any, memory: Memory) -> tuple[Update, Memory]:
        number = state["number"]
        self._note("map", number, shard.index, os.getpid())
        self._reached("map", shard.index, number)
        update = super().map(objective, state, shard, memory)
        self._reached("mapped", shard.index, number)
        watch_files([fault for fault in self.faults if (fault.rank, fault.step) == (shard.index, number)])
        return update

    def apply(self, state: State, update: Update) -> State:
        number = state["number"]
        self._reached("apply", DRIVER, number)
        # A checkpoint's step is the number of rounds that are done.
        watch_files([replace(fault, step=fault.step + 1) for fault in self.faults if fault.rank == DRIVER])
        return {**super().apply(state, update), "number": number + 1}

    def kept(self, row: dict[str, Any]) -> None:
        """The loop's listener."""
        self._note("kept", row["round"])
        self._reached("kept", DRIVER, row["round"])

    def _reached(self, phase: str, rank: int, number: int) -> None:
        for fault in self.faults:
            if (fault.phase, fault.rank, fault.step) == (phase, rank, number):
                fault.strike()

    def _note(self, *words: object) -> None:
        with Path(self.folder, "calls").open("a", encoding="utf-8") as file:
            file.write(" ".join(map(str, words)) + "\n")


def calls(folder: Path, number: int | None = None, shard: int | None = None) -> list[int]:
    """The pids of the processes that mapped shards, in order; of a round or of a shard, or all."""
    lines = [line.split() for line in (folder / "calls").read_text().splitlines()]
    mapped = [tuple(map(int, words[1:])) for words in lines if words[0] == "map"]
    return [pid for at, index, pid in mapped if number in (None, at) and shard in (None, index)]


def rows() -> dict[str, np.ndarray]:
    """A regression."""
    draw = np.random.default_rng(7)
    x = draw.normal(size=(ROWS, 4))
    return {"id": np.arange(ROWS), "x": x, "y": np.sin(x @ [1.0, -2.0, 0.5, 0.0]) + 0.1 * draw.normal(size=ROWS)}


def net() -> nn.Module:
    """Masks, and an objective that is not convex; ``[B, 4]`` to ``[B, 1]``."""
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 1))


def checkpoints(folder: Path) -> Checkpoints:
    return Checkpoints(str(folder / "checkpoints"), run="rounds")


def saved(folder: Path) -> dict[str, Any]:
    """The state in the newest checkpoint."""
    newest = checkpoints(folder).latest()
    assert newest is not None
    state: dict[str, Any] = unpack_state(newest[1].read("rounds"))
    return state


def run(
    cluster: Any,
    data: Any,
    folder: Path,
    faults: Sequence[Fault] = (),
    *,
    max_rounds: int = ROUNDS,
    listener: Any = lambda row: None,
) -> dict[str, Any]:
    """Run, or resume, in a folder; ``listener`` is called after each saved round.

    Returns:
        As JSON, all that two runs must agree in: every bit of state, history and memories, but no time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    watched = Watched(solver=LocalSGDSolver(batch_size=4), folder=str(folder), faults=tuple(faults))

    def after_round(row: dict[str, Any]) -> None:
        watched.kept(row)
        listener(row)

    loop = Rounds(
        watched,
        Objective(net, nn.MSELoss(), partial(Momentum, lr=0.02), precision="fp64"),
        seed=3,
        checkpoints=checkpoints(folder),
        memories=str(folder / "memories"),
        max_rounds=max_rounds - 1,  # the first one is in no history
        listener=after_round,
    )
    with cluster.map_reduce(data, COLUMNS, num_shards=PARTS) as jobs:
        state, history = loop.run(jobs)
    memories = Folder.of(str(folder / "memories"))
    return {
        "state": hashlib.sha256(pack_state(state)).hexdigest(),
        "history": [{key: value for key, value in row.items() if key != "seconds"} for row in history],
        "memories": [hashlib.sha256(memories.read(name)).hexdigest() for name in saved(folder)["memories"]],
    }


def locally(folder: str, faults: Sequence[Fault], path: str) -> None:
    """The main function of a driver that maps the shards itself; the result, or the error, goes to ``path``."""
    try:
        result = run(InlineCluster(), rows(), Path(folder), faults)
    except SparkdlError as error:
        Path(path).write_text(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        sys.exit(1)
    Path(path).write_text(json.dumps(result))


def assert_undisturbed(actual: Any, expected: Any, folder: Path) -> None:
    """The same bits; every shard was mapped in every round, no saved round ran again, and checkpoints are complete."""
    assert actual == expected
    assert actual["memories"]
    assert all(calls(folder, number, shard) for number in range(ROUNDS) for shard in range(PARTS))
    newest = -1
    for line in (folder / "calls").read_text().splitlines():
        what, number, *_ = line.split()
        assert int(number) > newest, line  # a driver that was killed after a commit did not log it
        if what == "kept":
            newest = int(number)
    assert saved(folder)["done"] == ROUNDS
    for manifest in (folder / "checkpoints").glob("attempt-*/manifest.json"):
        checkpoints(folder).open(manifest.parent.name).verify()
