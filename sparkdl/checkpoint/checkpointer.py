"""The keeper: what the gang loop calls; see the package."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from sparkdl.checkpoint.async_saver import Checkpoint, Saver, copied
from sparkdl.checkpoint.compatibility import Fitting
from sparkdl.checkpoint.interval import Every
from sparkdl.checkpoint.manifest import Manifest
from sparkdl.checkpoint.restore import restore
from sparkdl.checkpoint.sharding import deal, merge
from sparkdl.checkpoint.stops import StopEar
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.group.world import World
from sparkdl.errors import InvalidInput, PeerLost, Stopped
from sparkdl.io.serialization import unpack_state
from sparkdl.telemetry.clock import Clock
from sparkdl.telemetry.emit import notify
from sparkdl.telemetry.step_timer import enter

_HORIZON = 1.0  # seconds, about, between two looks at rank 0's clock


class CheckpointKeeper:
    """Keeps members' states in checkpoints; see ``sparkdl.training.course.Keeper``. Members have a copy each.

    Args:
        checkpoints: where.
        every: the distance between two of them; besides, the end of the training is kept.
        elastic: keep the end of every epoch besides, which a gang of another size can go on from.
        token: what the driver has announced in a directory that is its own; members that do not see it go without
            checkpoints, with a warning. None where the directory has to be one for all.
    """

    def __init__(
        self, checkpoints: Checkpoints, every: Every, *, elastic: bool = False, token: str | None = None
    ) -> None:
        self.checkpoints = checkpoints
        self.every = every
        self._elastic, self._token = elastic, token
        self._saver: Saver | None = None  # as long as there is a directory for all
        self._ear: StopEar | None = None  # rank 0's
        self._extra: dict[str, Any] = {}
        self._epoch = self._step = 0  # of the last checkpoint
        self._epochs = 0  # that were over after the last step
        self._look = self._looked = 0  # the step at which to look at the time, and that of the last look
        self._saved = self._seen = 0.0  # when the last checkpoint and the last look were

    @property
    def temporary(self) -> bool:
        """Whether the directory is the driver's own, and goes when the fit is over."""
        return self._token is not None

    def epoch(self) -> int:
        """See ``Keeper.epoch``."""
        return self.checkpoints.epoch()

    def load(self, world: World, parts: list[str]) -> dict[str, Any] | None:
        """See ``Keeper.load``.

        Raises:
            InvalidInput: the checkpoints are of another run or other data, or a member does not see them.
            Fenced: a newer attempt has begun.
        """
        if self._token is not None and not self._sees_own(world, self._token):
            return None
        _all(world, "fence", lambda: self.checkpoints.fence(world.attempt) if world.rank == 0 else None)
        if not self.temporary:
            self._see(world)
        fitting = Fitting(self.checkpoints.folder.path, self.checkpoints.writer, world.size, parts)
        self._extra = fitting.extra()
        state = self._restore(world, fitting)
        if state is not None:
            self._epoch, self._step = state["own"]["clock"]["epoch"], state["own"]["clock"]["step"]
        self._epochs, self._looked, self._look = self._epoch, self._step, self._step + 1
        self._saved = self._seen = time.monotonic()
        self._saver = Saver(self.checkpoints, world)
        self._ear = StopEar(self.checkpoints, world.attempt) if world.rank == 0 else None
        return state

    def after_step(self, world: World, state: Callable[[], dict[str, Any]], *, over: bool) -> None:
        """See ``Keeper.after_step``: save if it is time, and stop if the driver asks for it.

        Raises:
            Stopped: the driver has asked to stop, and the state is saved.
            Fenced: a newer attempt has begun.
        """
        if self._saver is None:
            return
        self._saver.check()
        epoch_ended, self._epochs = world.clock.epoch > self._epochs, world.clock.epoch
        due, stop = (not self.temporary, False) if over else self._ask(world)
        if due or stop or self._passed(world.clock, epoch_ended):
            self._save(world, state(), pinned=epoch_ended, last=over)
        if over or stop:
            self._saver.wait()
        if stop:
            raise Stopped(f"the run was asked to stop, and is saved as it was after step {world.clock.step}.")

    def close(self) -> None:
        """See ``Keeper.close``."""
        for each in (self._saver, self._ear):
            if each is not None:
                each.close()

    def _passed(self, clock: Clock, epoch_ended: bool) -> bool:
        """Whether as many steps or epochs have passed as there are between two checkpoints."""
        if epoch_ended and self._elastic:
            return True
        if self.every.unit == "steps":
            return clock.step - self._step >= self.every.count
        return self.every.unit == "epochs" and epoch_ended and clock.epoch - self._epoch >= self.every.count

    def _ask(self, world: World) -> tuple[bool, bool]:
        """Whether it is time for a checkpoint by rank 0's clock, and whether it has heard that the run is to stop."""
        if world.clock.step < self._look:
            return False, False
        told = world.hear(f"look {world.clock.step}", self._tell(world) if world.rank == 0 else {})
        self._looked, self._seen, self._look = world.clock.step, time.monotonic(), told["next"]
        return told["due"], told["stop"]

    def _tell(self, world: World) -> dict[str, Any]:
        assert self._saver is not None
        assert self._ear is not None
        now, step = time.monotonic(), world.clock.step
        left = self.every.seconds(self._saver.cost, world.attempt) - (now - self._saved)
        # Twice as many steps at most until the next look: the first ones are no measure of the others.
        steps = max(1, step - self._looked)
        pace = max(now - self._seen, 1e-6) / steps
        ahead = min(2 * steps, int((_HORIZON if left <= 0 else min(left, _HORIZON)) / pace))
        return {"due": left <= 0, "stop": self._ear.asked.is_set(), "next": step + max(1, ahead)}

    def _save(self, world: World, state: dict[str, Any], *, pinned: bool, last: bool) -> None:
        assert self._saver is not None
        phase, world.phase = world.phase, "checkpoint"
        enter("checkpoint")
        self._saver.wait()
        shards = {_own(world.rank): copied(state["own"])}
        if state["alike"]:
            shards[_alike(world.rank)] = copied(deal(state["alike"], world.rank, world.size))
        clock = Clock(**world.clock.state_dict())
        self._saver.save(Checkpoint(clock, shards, pinned, last, self._extra))
        self._epoch, self._step, self._saved = clock.epoch, clock.step, time.monotonic()
        world.phase = phase
        enter("other")

    def _sees_own(self, world: World, token: str) -> bool:
        answers = world.agree("directory", {"sees": self.checkpoints.sees(token), "host": world.host})
        blind = [f"rank {rank} on {each['host']}" for rank, each in enumerate(answers) if not each["sees"]]
        if blind and world.rank == 0:
            notify(
                f"there are no checkpoints: without runDir they are in a temporary directory of the driver's host, "
                f"which {', '.join(blind)} cannot read. A gang that is run again begins anew; set runDir to a "
                "directory that all hosts share, such as hdfs:// or s3://."
            )
        return not blind

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
                f"{self.checkpoints.folder.path} is not one directory for all members: {', '.join(blind)} cannot read "
                f"what rank 0 on {answers[0]['host']} wrote there. Expected a runDir that all hosts share, such as "
                "hdfs:// or s3://."
            )

    def _restore(self, world: World, fitting: Fitting) -> dict[str, Any] | None:
        def pick(manifest: Manifest) -> list[str]:
            # A member that there was none of goes on as rank 0.
            own = world.rank if world.rank < manifest.world_size else 0
            return [_own(own), *filter(_is_alike, manifest.shards)]

        if world.rank == 0 and (newest := self.checkpoints.latest(verify=False)) is not None:
            fitting.newest(newest[1].manifest)
        found = restore(self.checkpoints, world.rank, world.agree, pick, accept=fitting.accepts)
        if found is None:
            return None
        states = {shard: unpack_state(packed) for shard, packed in found[1].items()}
        alike = merge([states.pop(shard) for shard in [*filter(_is_alike, states)]])
        return {"alike": alike, "own": next(iter(states.values()))}


def _own(rank: int) -> str:
    return f"{rank:05d}"


def _alike(rank: int) -> str:
    return f"alike-{rank:05d}"


def _is_alike(shard: str) -> bool:
    return shard.startswith("alike-")


def _all(world: World, key: str, call: Callable[[], None]) -> None:
    """Rank 0 does something that may fail, and no member goes on then, or waits for one that does not."""
    trouble: Exception | None = None
    try:
        call()
    except Exception as error:
        trouble = error
    answers: list[Mapping[str, Any]] = [*world.agree(key, {"trouble": trouble is not None})]
    if trouble is not None:
        raise trouble
    if any(each["trouble"] for each in answers):
        raise PeerLost(f"rank 0 failed ({key}).")
