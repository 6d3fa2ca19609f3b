"""Faults in rounds: an algorithm that is watched writes down what it is called for, and lets faults happen."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparkdl.rounds import Memory, State, Update, to_send
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.fedavg import FederatedAveraging
from tests.faults.fault import Fault
from tests.faults.places import watch_files

DRIVER = -1
"""The rank of faults that happen to the driver."""


@dataclass(frozen=True)
class Watched:
    """An algorithm to which faults happen; its state has, besides, the number of the round.

    A fault's ``rank`` is the part, or ``DRIVER``, and its ``step`` the number of the round. Phases are

        of a part      ``"map"``, before it is mapped; ``"mapped"``, after it; ``"memory"``, half of its memory written;
                       ``"remembered"``, its memory written, and nobody told
        of the driver  ``"apply"``, all parts are mapped and nothing is saved; ``"shard"``, ``"written"``,
                       ``"manifest"``, ``"rename"`` and ``"renamed"`` of the checkpoint; ``"kept"``, before the next
                       round

    Attributes:
        algorithm: it.
        folder: where ``calls`` is, a line for each part that is mapped (``map``, round, part, host, pid, attempt of
            Spark's task) and for each round that is kept (``kept``, round).
        faults: what happens.
    """

    algorithm: Any
    folder: str
    faults: tuple[Fault, ...] = ()

    @property
    def uses_optimizer(self) -> bool:
        """See ``Algorithm``."""
        return bool(self.algorithm.uses_optimizer)

    @property
    def prepares(self) -> int:
        """Rounds that are in no history: they have numbers here all the same, from 0."""
        return int(isinstance(self.algorithm, (ConsensusADMM, FederatedAveraging)))

    def init(self, objective: Any, seed: int) -> State:
        """See ``Algorithm``."""
        return {**self.algorithm.init(objective, seed), "number": 0}

    def broadcast_state(self, state: State) -> State:
        """See ``Algorithm``."""
        return {**to_send(self.algorithm, state), "number": state["number"]}

    def map(self, objective: Any, state: State, part: Any, memory: Memory) -> tuple[Update, Memory]:
        """See ``Algorithm``."""
        number = state["number"]
        self._note("map", number, part.index, socket.gethostname(), os.getpid(), _attempt())
        self._reached("map", part.index, number)
        found: tuple[Update, Memory] = self.algorithm.map(objective, state, part, memory)
        self._reached("mapped", part.index, number)
        watch_files([fault for fault in self.faults if (fault.rank, fault.step) == (part.index, number)])
        return found

    def reduce(self, one: Update, other: Update) -> Update:
        """See ``Algorithm``."""
        found: Update = self.algorithm.reduce(one, other)
        return found

    def apply(self, state: State, update: Update) -> State:
        """See ``Algorithm``."""
        number = state["number"]
        self._reached("apply", DRIVER, number)
        # A checkpoint's step is the number of rounds that are done.
        watch_files([replace(fault, step=fault.step + 1) for fault in self.faults if fault.rank == DRIVER])
        return {**self.algorithm.apply(state, update), "number": number + 1}

    def converged(self, state: State) -> bool:
        """See ``Algorithm``."""
        return bool(self.algorithm.converged(state))

    def metrics(self, state: State) -> dict[str, float | str]:
        """See ``Algorithm``."""
        found: dict[str, float | str] = self.algorithm.metrics(state)
        return found

    def kept(self, row: dict[str, Any]) -> None:
        """The loop's listener."""
        number = row["round"] - 1 + self.prepares
        self._note("kept", number)
        self._reached("kept", DRIVER, number)

    def _reached(self, phase: str, rank: int, number: int) -> None:
        for fault in self.faults:
            if (fault.phase, fault.rank, fault.step) == (phase, rank, number):
                fault.strike()

    def _note(self, *words: object) -> None:
        with Path(self.folder, "calls").open("a", encoding="utf-8") as file:
            file.write(" ".join(map(str, words)) + "\n")


def _attempt() -> int:
    """The number of the attempt of the Spark task that this is, 0 where there is no Spark."""
    spark = sys.modules.get("pyspark")
    context = None if spark is None else spark.TaskContext.get()
    return 0 if context is None else context.attemptNumber()


@dataclass(frozen=True)
class Call:
    """A part that was mapped: when among all calls, in which round, which part, where and as which attempt."""

    place: int
    round: int
    part: int
    host: str
    pid: int
    attempt: int


def calls(folder: Path, number: int | None = None, part: int | None = None) -> list[Call]:
    """The parts that were mapped, in order; of a round or of a part, or all."""
    lines = [line.split() for line in (folder / "calls").read_text().splitlines()]
    found = [
        Call(place, int(words[1]), int(words[2]), words[3], int(words[4]), int(words[5]))
        for place, words in enumerate(lines)
        if words[0] == "map"
    ]
    return [each for each in found if number in (None, each.round) and part in (None, each.part)]


def check_calls(folder: Path, rounds: int, parts: int) -> None:
    """Every part was mapped in every round; and in no round that is older than the newest that was kept by then."""
    assert {(call.round, call.part) for call in calls(folder)} == {
        (number, part) for number in range(rounds) for part in range(parts)
    }
    newest = -1
    for line in (folder / "calls").read_text().splitlines():
        what, number, *_ = line.split()
        if what == "kept":
            assert int(number) > newest, line  # whoever was killed after a commit has not written it down
            newest = int(number)
        else:
            assert int(number) > newest, line
