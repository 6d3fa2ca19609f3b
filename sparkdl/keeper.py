"""Keeping the states of a gang's members in checkpoints, and going on from them.

    attempt begins   fence older attempts; see that all members have one directory; restore the newest sound checkpoint
    after a step     is it time? every member writes its state, all tell their digests, rank 0 commits

Members agree by way of the rendezvous store, never over the training group. Whether it is time is told by the steps,
the epochs, or rank 0's clock. A checkpoint that cannot be written (a full disk) costs a warning and not the run: the
one before it stays.
"""

from __future__ import annotations

import math
import re
import time
import uuid
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkdl.checkpoint import Checkpoints, Digest, Manifest, restore
from sparkdl.errors import InvalidInput, PeerLost
from sparkdl.events import record
from sparkdl.state import pack_state, unpack_state
from sparkdl.world import World

_FIRST = 60.0  # seconds to the first checkpoint of "auto", before it is known what one costs
_MEAN_TIME = 4 * 3600.0  # seconds between failures as long as there was none
_LEAST = 5.0  # seconds between two checkpoints of "auto"


@dataclass(frozen=True)
class Every:
    """The distance between two checkpoints.

    Attributes:
        count: how many.
        unit: ``"steps"``, ``"epochs"``, ``"seconds"``; or ``"auto"``, which takes Young's interval
            ``sqrt(2 C M)`` seconds from the measured cost C of a checkpoint and the observed mean time M between
            failures (J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974).
    """

    count: int
    unit: str

    @staticmethod
    def of(given: int | str) -> Every:
        """``500`` (steps), ``"2 epochs"``, ``"30 seconds"`` or ``"auto"``.

        Raises:
            InvalidInput: it is something else.
        """
        if given == "auto":
            return Every(1, "auto")
        if isinstance(given, int) and not isinstance(given, bool) and given >= 1:
            return Every(given, "steps")
        match = re.fullmatch(r"([1-9]\d*) (epoch|second)s?", given) if isinstance(given, str) else None
        if match is None:
            raise InvalidInput(
                f"checkpointEvery is {given!r}; expected a number of steps, such as 500, or '2 epochs', '30 seconds' "
                "or 'auto'."
            )
        return Every(int(match[1]), f"{match[2]}s")


def young(cost: float, mean_time: float) -> float:
    """Young's interval in seconds, from the seconds a checkpoint costs and the mean seconds between failures."""
    return max(math.sqrt(2 * cost * mean_time), _LEAST)


class CheckpointKeeper:
    """Keeps members' states in checkpoints; see ``sparkdl.course.Keeper``. Members have a copy each.

    Args:
        checkpoints: where.
        every: the distance between two of them; besides, the end of the training is kept.
    """

    def __init__(self, checkpoints: Checkpoints, every: Every) -> None:
        self.checkpoints = checkpoints
        self.every = every
        self._epoch = self._step = self._look = 0  # of the last checkpoint, and the step at which to look at the time
        self._epochs = 0  # that were over after the last step
        self._saved = 0.0
        self._cost: float | None = None

    def load(self, world: World) -> dict[str, Any] | None:
        """This member's state in the newest checkpoint that is sound for all; None where there is none.

        Raises:
            InvalidInput: the checkpoints are of another run, or a member does not see them.
            Fenced: a newer attempt has begun.
        """
        _all(world, "fence", lambda: self.checkpoints.fence(world.attempt) if world.rank == 0 else None)
        self._see(world)
        state = self._restore(world)
        if state is not None:
            self._epoch, self._step = state["clock"]["epoch"], state["clock"]["step"]
        self._epochs, self._look, self._saved = self._epoch, self._step + 1, time.monotonic()
        return state

    def after_step(self, world: World, state: Callable[[], dict[str, Any]], *, over: bool) -> None:
        """Write a checkpoint if it is time for one.

        Raises:
            Fenced: a newer attempt has begun.
        """
        epoch_ended, self._epochs = world.clock.epoch > self._epochs, world.clock.epoch
        if not over and not self._due(world, epoch_ended):
            return
        began, phase = time.monotonic(), world.phase
        world.phase = "checkpoint"
        self._write(world, state, pinned=epoch_ended)
        world.phase = phase
        self._cost = time.monotonic() - began
        self._epoch, self._step = world.clock.epoch, world.clock.step
        self._look, self._saved = self._step + 1, time.monotonic()

    def _due(self, world: World, epoch_ended: bool) -> bool:
        steps = world.clock.step - self._step
        if self.every.unit == "steps":
            return steps >= self.every.count
        if self.every.unit == "epochs":
            return epoch_ended and world.clock.epoch - self._epoch >= self.every.count
        if world.clock.step < self._look:
            return False
        told = {"spent": time.monotonic() - self._saved, "wait": self._wait(world)}
        spent, wait = world.agree(f"time {world.clock.step}", told)[0].values()
        if spent >= wait:
            return True
        # Twice as many steps at most until the next look: the first ones are no measure of the others.
        self._look = world.clock.step + max(1, min(steps, int((wait - spent) / spent * steps)))
        return False

    def _wait(self, world: World) -> float:
        if self.every.unit == "seconds":
            return float(self.every.count)
        return _FIRST if self._cost is None else young(self._cost, _MEAN_TIME / (world.attempt + 1))

    def _write(self, world: World, state: Callable[[], dict[str, Any]], *, pinned: bool) -> None:
        name = self.checkpoints.name(world.clock, world.attempt)
        answer: dict[str, Any] = {}
        try:
            digest = self.checkpoints.write(name, _shard(world.rank), pack_state(state())).result()
            answer["digest"] = digest.to_json()
        except OSError as error:
            answer["trouble"] = str(error)
        answers = world.agree(f"checkpoint {name}", answer)
        trouble = [each["trouble"] for each in answers if "trouble" in each]
        if not trouble and world.rank == 0:
            digests = [Digest.from_json(each["digest"]) for each in answers]
            try:
                self.checkpoints.commit(name, digests, world.clock, world_size=world.size, pinned=pinned)
            except OSError as error:
                trouble.append(str(error))
        if world.rank == 0:
            record("checkpoint", clock=world.clock, name=name, trouble=trouble[:1])
            if trouble:
                warnings.warn(f"there is no checkpoint {name}: {trouble[0]}", RuntimeWarning, stacklevel=2)

    def _see(self, world: World) -> None:
        """Refuse a directory that is not the same for all: each member would find what it wrote itself."""
        token = world.agree("directory", {"token": uuid.uuid4().hex})[0]["token"]
        _all(world, "announce", lambda: self.checkpoints.announce(token) if world.rank == 0 else None)
        answers = world.agree("seen", {"sees": self.checkpoints.sees(token), "host": world.host})
        if world.rank == 0:
            self.checkpoints.withdraw(token)
        blind = [f"rank {rank} on {each['host']}" for rank, each in enumerate(answers) if not each["sees"]]
        if blind:
            raise InvalidInput(
                f"{self.checkpoints.folder.path} is not one directory for all members: {', '.join(blind)} cannot see "
                f"what rank 0 on {answers[0]['host']} wrote there. Expected a runDir that all hosts share, such as "
                "hdfs:// or s3://."
            )

    def _restore(self, world: World) -> dict[str, Any] | None:
        def own(manifest: Manifest) -> list[str]:
            if manifest.world_size != world.size:
                raise InvalidInput(
                    f"{self.checkpoints.folder.path} has checkpoints of {manifest.world_size} members, and this gang "
                    f"has {world.size}; go on with numWorkers={manifest.world_size}, or take another runDir."
                )
            return [_shard(world.rank)]

        found = restore(self.checkpoints, world.rank, world.agree, own)
        if found is None:
            return None
        state: dict[str, Any] = unpack_state(found[1][_shard(world.rank)])
        return state


def _shard(rank: int) -> str:
    return f"{rank:05d}"


def _all(world: World, key: str, call: Callable[[], None]) -> None:
    """Rank 0 does something that may fail, and no member goes on then, or waits for one that does not."""
    trouble: Exception | None = None
    try:
        call()
    except Exception as error:
        trouble = error
    answers = world.agree(key, {"trouble": trouble is not None})
    if trouble is not None:
        raise trouble
    if any(each["trouble"] for each in answers):
        raise PeerLost(f"rank 0 failed ({key}).")
