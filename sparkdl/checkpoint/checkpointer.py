"""The keeper: what the gang loop calls; see the package."""

from __future__ import annotations

import logging
import threading
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
from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.group.world import World
from sparkdl.data.fingerprint import fingerprint
from sparkdl.data.shard import Part
from sparkdl.errors import InvalidInput, PeerLost, Stopped
from sparkdl.io.serialization import unpack_state
from sparkdl.telemetry.clock import Clock
from sparkdl.telemetry.emit import notify
from sparkdl.telemetry.step_timer import enter

logger = logging.getLogger(__name__)

_HORIZON = 1.0  # seconds, about, between two looks at rank 0's clock
_LOOK = 1.0  # seconds between two looks for the driver's word: in an object store each is a request


class CheckpointKeeper:
    """Keeps members' states in checkpoints, for the gang loop. Members have a copy each.

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
        """The epochs that are over in the newest checkpoint; called on the driver, for an attempt's title."""
        return self.checkpoints.epoch()

    def load(self, world: World, part: Part) -> dict[str, Any] | None:
        """Find the state to continue from, on every member together.

        A state of a gang of another size is of an epoch's end, and may be of any member.

        Args:
            world: the gang; the call uses collectives.
            part: this member's rows, whose fingerprint the saved one must equal.

        Returns:
            This member's state, as ``TrainerState.state`` returned it after a step that all have in common; None
            where there is no checkpoint, or no directory for all.

        Raises:
            InvalidInput: the checkpoints are of another run or other data, or a member does not see them.
            Fenced: a newer attempt has begun.
        """
        if self._token is not None and not self._sees_own(world, self._token):
            return None
        _all(world, "fence", lambda: self.checkpoints.fence(world.attempt) if world.rank == 0 else None)
        if not self.temporary:
            self._see(world)
        parts = [str(each) for each in world.group().gather(fingerprint(part))]
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
        """After a step, save if it is time, and stop if the driver asks for it.

        Args:
            world: the gang, whose clock says which step; the call may use collectives.
            state: gives this member's state. Its tensors and lists are those that training goes on with: they are
                packed, or copied, before this returns.
            over: whether the training is over with this step.

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
        """The attempt is over, in whatever way: end the threads."""
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
        blind = SharedDirectory(self.checkpoints.folder, token).blind_members(world, "directory")
        if blind and world.rank == 0:
            notify(
                f"there are no checkpoints: without runDir they are in a temporary directory of the driver's host, "
                f"which {', '.join(blind)} cannot read. A gang that is run again begins anew; set runDir to a "
                "directory that all hosts share, such as hdfs:// or s3://."
            )
        return not blind

    def _see(self, world: World) -> None:
        """Refuse a directory that is not the same for all: each member would find what it wrote itself."""
        first = world.agree("directory", {"token": uuid.uuid4().hex, "host": world.host})[0]
        directory = SharedDirectory(self.checkpoints.folder, first["token"])
        _all(world, "announce", lambda: directory.announce() if world.rank == 0 else None)
        blind = directory.blind_members(world, "seen")
        if world.rank == 0:
            directory.withdraw()
        if blind:
            raise InvalidInput(
                f"{self.checkpoints.folder.path} is not one directory for all members: {', '.join(blind)} cannot read "
                f"what rank 0 on {first['host']} wrote there. Expected a runDir that all hosts share, such as "
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


class StopEar:
    """Looks in a thread of rank 0 for the driver's word to save and stop, left in the checkpoints' directory.

    Args:
        checkpoints: the run's.
        attempt: this attempt.

    Attributes:
        asked: set once the driver has asked.
    """

    def __init__(self, checkpoints: Checkpoints, attempt: int) -> None:
        self.asked = threading.Event()
        self._checkpoints, self._attempt = checkpoints, attempt
        self._ended = threading.Event()
        threading.Thread(target=self._listen, name="sparkdl-stops", daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._ended.set()

    def _listen(self) -> None:
        while not self._ended.wait(_LOOK):
            try:
                if self._checkpoints.asked_to_stop(self._attempt):
                    self.asked.set()
                    return
            except OSError as error:  # the next look may succeed
                logger.warning("%s cannot be looked at: %s", self._checkpoints.folder.path, error)


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
