"""The round loop: init or restore -> (map -> reduce -> apply -> save -> record)* until done.

What a round has done counts once its state is saved: the state, the history, and the names of the parts' memories.
Tasks write a memory under a name of their own each time they run. So a driver that is killed in a round begins that
round again, from the same state and the same memories.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sparkdl.checkpoint import Checkpoints
from sparkdl.clock import Clock
from sparkdl.errors import InvalidInput
from sparkdl.feed.part import Part
from sparkdl.files import Folder
from sparkdl.map_reduce import Jobs, Tensors
from sparkdl.objective import Objective
from sparkdl.rounds import Algorithm, State
from sparkdl.state import pack_pieces, unpack_state

_SHARD = "rounds"


@dataclass(frozen=True)
class Round:
    """What an algorithm does to a part, as the cluster runs it.

    Attributes:
        algorithm: how rounds agree.
        objective: what is minimised.
        directory: where the parts' memories are; None where there is no place that all tasks see.
    """

    algorithm: Algorithm
    objective: Objective
    directory: str | None = None

    def map(self, state: Any, part: Part) -> tuple[Tensors, Any]:
        """See ``RoundWork``; the note is the name of the part's memory."""
        name = state["memories"][part.index] if state["memories"] else None
        memory = None if name is None else unpack_state(self._folder().read(name))
        update, memory = self.algorithm.map(self.objective, state["state"], part, memory)
        for key, tensor in update.items():
            if not bool(torch.isfinite(tensor).all()):
                raise InvalidInput(f"{key} is not finite; lower the learning rate, set clipNorm, or scale the inputs.")
        if memory is None:
            return update, None
        name = f"part-{part.index:05d}-{uuid.uuid4().hex}"
        self._folder().write(name, *pack_pieces(memory))
        return update, name

    def reduce(self, one: Tensors, other: Tensors) -> Tensors:
        """See ``RoundWork``."""
        return self.algorithm.reduce(one, other)

    def _folder(self) -> Folder:
        if self.directory is None:
            raise InvalidInput(
                f"{type(self.algorithm).__name__} keeps a memory of each part, and there is no directory for it; set "
                "runDir to one that all hosts share, such as hdfs:// or s3://."
            )
        return Folder.of(self.directory)


@dataclass
class Rounds:
    """A run of rounds.

    Attributes:
        algorithm: how rounds agree.
        objective: what is minimised.
        seed: of the weights and of whatever is random.
        checkpoints: where the state is saved after every round; None for nowhere.
        memories: where parts keep their memories; seen by all tasks.
        max_rounds: rounds after which it ends though the algorithm is not done; None for no limit.
        time_budget: seconds after which no other round begins; None for no limit.
        listener: called with the history's row after every round.
    """

    algorithm: Algorithm
    objective: Objective
    seed: int = 0
    checkpoints: Checkpoints | None = None
    memories: str | None = None
    max_rounds: int | None = None
    time_budget: float | None = None
    listener: Callable[[dict[str, Any]], None] | None = None

    def run(self, jobs: Jobs) -> tuple[State, list[dict[str, Any]]]:
        """Run rounds until the algorithm is done.

        Returns:
            The last state, whose ``"weights"`` are the model's, and the history: a row for each round.

        Raises:
            InvalidInput: a part's result is not finite, or the saved rounds are of another run or other parts.
            Fenced: another driver has begun to run the same.
        """
        began, attempt = time.monotonic(), self._begin()
        saved = self._restore(jobs.parts) or {
            "state": self.algorithm.init(self.objective, self.seed),
            "memories": [],
            "history": [],
            "parts": list(jobs.parts),
        }
        work = Round(self.algorithm, self.objective, self.memories)
        while not self._over(saved, time.monotonic() - began):
            start, number = time.monotonic(), len(saved["history"])
            sent = {name: saved[name] for name in ("state", "memories")}
            update, memories = jobs.run(work, sent, number=number)
            state = self.algorithm.apply(saved["state"], update)
            row = {"round": number, **self.algorithm.row(state), "seconds": time.monotonic() - start}
            kept = memories if any(memories) else []
            saved = {**saved, "state": state, "memories": kept, "history": [*saved["history"], row]}
            self._save(saved, attempt)
            if self.listener is not None:
                self.listener(row)
        return saved["state"], saved["history"]

    def _over(self, saved: dict[str, Any], seconds: float) -> bool:
        if self.algorithm.done(saved["state"]):
            return True
        if self.max_rounds is not None and len(saved["history"]) >= self.max_rounds:
            return True
        return self.time_budget is not None and seconds >= self.time_budget

    def _begin(self) -> int:
        if self.checkpoints is None:
            return 0
        attempt = self.checkpoints.next_attempt()
        self.checkpoints.fence(attempt)
        return attempt

    def _restore(self, parts: Sequence[int]) -> dict[str, Any] | None:
        found = None if self.checkpoints is None else self.checkpoints.latest()
        if found is None:
            return None
        saved: dict[str, Any] = unpack_state(found[1].read(_SHARD))
        if saved["parts"] != list(parts):
            raise InvalidInput(
                f"the rounds that are saved were run on {len(saved['parts'])} parts of {sum(saved['parts'])} rows, and "
                f"now there are {len(parts)} of {sum(parts)}. Take another runDir, or the same data and parts."
            )
        return saved

    def _save(self, saved: dict[str, Any], attempt: int) -> None:
        if self.checkpoints is None:
            return
        clock = Clock(step=len(saved["history"]))
        name = self.checkpoints.name(clock, attempt)
        digest = self.checkpoints.write(name, _SHARD, *pack_pieces(saved)).result()
        self.checkpoints.commit(name, [digest], clock, world_size=len(saved["parts"]))
