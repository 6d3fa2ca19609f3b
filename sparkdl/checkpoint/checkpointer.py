"""The checkpointer: saves and restores the workers' states for the training loop."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sparkdl.checkpoint.async_saver import Checkpoint, RowFile, Saver, SaveStatus, copied
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.manifest import Manifest
from sparkdl.checkpoint.restore import Compatibility, restore
from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.checkpoint.slices import FILE, SharedState, deal, files_of, row_files
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.group.world import World
from sparkdl.data.clock import Clock
from sparkdl.data.fingerprint import Fingerprint
from sparkdl.errors import InvalidInput, PeerLost, Stopped
from sparkdl.io.serialization import pack_state, unpack_state
from sparkdl.telemetry.emit import notify
from sparkdl.telemetry.step_timer import enter_phase

logger = logging.getLogger(__name__)

_HORIZON = 1.0  # approximate seconds between two queries of rank 0's clock
_POLL = 1.0  # seconds between two polls for a stop request: each is a request to an object store


class Checkpointer:
    """Saves and restores the workers' states for the training loop; every worker has its own instance.

    Args:
        checkpoints: where to save.
        every: the checkpoint interval; the end of training is saved as well.
        elastic: save every epoch's end as well, from which a gang of another size can resume.
        token: the token that the driver announced in its temporary directory. If a worker cannot see it, the gang warns
            and saves nothing. None if all workers must share the directory.
    """

    def __init__(
        self, checkpoints: Checkpoints, every: CheckpointInterval, *, elastic: bool = False, token: str | None = None
    ) -> None:
        self.checkpoints = checkpoints
        self.every = every
        self._elastic, self._token = elastic, token
        self._saver: Saver | None = None  # None without a shared directory
        self._stop_poller: StopPoller | None = None  # rank 0's
        self._settles = False  # whether workers wait for each other at checkpoints and epochs' ends alone
        self._extra: dict[str, Any] = {}
        self._epoch = self._step = 0  # of the last checkpoint
        self._epochs = 0  # completed after the last step
        self._next_query = self._queried_step = 0  # steps of the next and of the last query of rank 0's clock
        self._saved_at = self._queried_at = 0.0  # times of the last checkpoint and of the last query

    @property
    def temporary(self) -> bool:
        """Whether the directory is temporary, on the driver, and deleted after the fit."""
        return self._token is not None

    def epoch(self) -> int:
        """Completed epochs of the newest checkpoint; the driver calls it for an attempt's title."""
        return self.checkpoints.epoch()

    def layout_state(self) -> Mapping[str, Any]:
        """What the layout saved in the newest checkpoint; empty without one."""
        saved: Mapping[str, Any] = self.checkpoints.extra().get("layout", {})
        return saved

    def load(self, world: World, fingerprint: Fingerprint, live: Mapping[str, Any]) -> dict[str, Any] | None:
        """Restore the newest usable state, on every worker together, with collectives; its threads end with the gang.

        ``fingerprint`` is of this worker's rows. ``live`` has this worker's ``"slices"``, and under ``"shared"`` the
        tensors that take the saved values of their paths. With ``"settles"``, rank 0's clock decides at epochs' ends
        alone, since a query within an epoch would bind all workers to rank 0.
        Returns this worker's ``TrainerState.state`` after a step common to all; None without a checkpoint or a shared
        directory. If the gang's size has changed, the state is of an epoch's end, and its local part of any worker.

        Raises:
            InvalidInput: the checkpoints belong to another run or other data, or a worker cannot see them.
            Fenced: a newer attempt has started.
        """
        self._settles = live.get("settles", False)
        if self._settles and world.rank == 0 and self.every.unit in ("seconds", "auto") and not self.temporary:
            notify(
                "checkpointInterval is in seconds, and workers do not wait for each other in each step: checkpoints "
                "are saved at epochs' ends alone. Set a number of steps, such as 500, or of epochs."
            )
        if self._token is not None and not self._sees_own(world, self._token):
            return None
        _on_rank_0(world, "fence", lambda: self.checkpoints.fence(world.attempt))
        if not self.temporary:
            self._see(world)
        fingerprints = [str(value) for value in world.group().gather(fingerprint)]
        fitting = Compatibility(self.checkpoints.folder.path, self.checkpoints.writer, world.size, fingerprints)
        self._extra = {"writer": self.checkpoints.writer, "shards": fingerprints}
        state = self._restore(world, fitting, live)
        if state is not None:
            self._epoch, self._step = state["local"]["clock"]["epoch"], state["local"]["clock"]["step"]
        self._epochs, self._queried_step, self._next_query = self._epoch, self._step, self._step + 1
        self._saved_at = self._queried_at = time.monotonic()
        self._saver = Saver(self.checkpoints, world, None if state is None else self._step)
        world.on_end(self._saver.close)
        self._stop_poller = StopPoller(self.checkpoints, world.attempt) if world.rank == 0 else None
        if self._stop_poller is not None:
            world.on_end(self._stop_poller.close)
        return state

    def check(self, state: dict[str, Any]) -> None:
        """Raise InvalidInput if a part of a state cannot be saved; tensors' values are not read.

        Without a shared directory the attempt saves no checkpoints, and nothing is checked.
        """
        if self._saver is not None:
            pack_state(copied([state["shared"], state["local"]], lambda tensor: tensor.new_empty(0)))

    def after_step(self, world: World, state: Callable[[], dict[str, Any]], *, finished: bool) -> None:
        """Save a checkpoint if it is due, and stop if the driver requested it; may use collectives.

        ``state`` returns this worker's live state. Before the call returns, the state is copied, and rows of tables are
        written. With ``finished``, training ends with this step.

        Raises:
            Stopped: the driver, or a newer fit, requested a stop; the message has the step of the newest checkpoint.
            Fenced: a newer attempt has started.
        """
        if self._saver is None:
            return
        self._saver.check()
        epoch_ended, self._epochs = world.clock.epoch > self._epochs, world.clock.epoch
        passed = self._passed(world.clock, epoch_ended)
        if finished:
            due, stop = not self.temporary, False
        else:
            due, stop = self._ask(world) if epoch_ended or passed or not self._settles else (False, False)
        if due or stop or passed:
            self._save(world, state(), pinned=epoch_ended, last=finished)
        if not finished and not stop:
            return
        saved = self._saver.wait()
        if stop:
            # Rank 0 alone knows whether the commit succeeded, and a worker that ends before it would cut it short.
            saved = SaveStatus(**world.all_gather_json("stopped", vars(saved))[0])
            raise Stopped(f"the run was asked to stop; {saved}.")

    def _passed(self, clock: Clock, epoch_ended: bool) -> bool:
        if epoch_ended and self._elastic:
            return True
        if self.every.unit == "steps":
            return clock.step - self._step >= self.every.count
        return self.every.unit == "epochs" and epoch_ended and clock.epoch - self._epoch >= self.every.count

    def _ask(self, world: World) -> tuple[bool, bool]:
        # Whether a checkpoint is due, and whether a stop was requested, both according to rank 0.
        if world.clock.step < self._next_query:
            return False, False
        answer = world.broadcast_json(f"look {world.clock.step}", self._report(world) if world.rank == 0 else {})
        self._queried_step, self._queried_at, self._next_query = world.clock.step, time.monotonic(), answer["next"]
        return answer["due"], answer["stop"]

    def _report(self, world: World) -> dict[str, Any]:
        assert self._saver is not None
        assert self._stop_poller is not None
        now, step = time.monotonic(), world.clock.step
        left = self.every.seconds(self._saver.cost, world.attempt) - (now - self._saved_at)
        # At most twice as many steps until the next query: the first steps may be slower.
        steps = max(1, step - self._queried_step)
        pace = max(now - self._queried_at, 1e-6) / steps
        ahead = min(2 * steps, int((_HORIZON if left <= 0 else min(left, _HORIZON)) / pace))
        return {"due": left <= 0, "stop": self._stop_poller.asked.is_set(), "next": step + max(1, ahead)}

    def _save(self, world: World, state: dict[str, Any], *, pinned: bool, last: bool) -> None:
        assert self._saver is not None
        phase, world.phase = world.phase, "checkpoint"
        enter_phase("checkpoint")
        self._saver.wait()
        shards = {f"{world.rank:05d}": copied(state["local"])}
        index: dict[str, Any] = {}
        rows: Iterator[RowFile] = iter(())
        if shared := state["shared"]:
            name, slices = f"{FILE}{world.rank:05d}", state["slices"]
            complete, divided = state.get("complete", True), frozenset(state.get("divided", ()))
            part, index[name] = deal(shared, slices, world.rank, world.size, complete=complete, divided=divided)
            shards[name], rows = copied(part), _in_phases(world, row_files(shared, slices, world.rank, divided))
        clock = Clock(**world.clock.state_dict())
        extra = self._extra | {"layout": state.get("layout", {})}
        self._saver.save(Checkpoint(clock, shards, index, pinned, last, extra), rows)
        self._epoch, self._step, self._saved_at = clock.epoch, clock.step, time.monotonic()
        world.phase = phase
        enter_phase("other")

    def _sees_own(self, world: World, token: str) -> bool:
        blind = SharedDirectory(self.checkpoints.directory, token).workers_without_access(world, "directory")
        if blind and world.rank == 0:
            notify(
                f"sparkdl saves no checkpoints: without runDir they are in a temporary directory on the driver's host, "
                f"which {', '.join(blind)} cannot read. A restarted gang begins anew; set runDir to a directory "
                "that all hosts share, such as hdfs:// or s3://."
            )
        return not blind

    def _see(self, world: World) -> None:
        # Otherwise each worker would restore only its own files.
        first = world.all_gather_json("directory", {"token": uuid.uuid4().hex, "host": world.host})[0]
        directory = SharedDirectory(self.checkpoints.directory, first["token"])
        _on_rank_0(world, "announce", directory.announce)
        blind = directory.workers_without_access(world, "seen")
        if world.rank == 0:
            directory.withdraw()
        if blind:
            raise InvalidInput(
                f"{self.checkpoints.folder.path} is not one directory for all workers: {', '.join(blind)} cannot read "
                f"what rank 0 on {first['host']} wrote there. Set runDir to a directory that all hosts share, such as "
                "hdfs:// or s3://."
            )

    def _restore(self, world: World, fitting: Compatibility, live: Mapping[str, Any]) -> dict[str, Any] | None:
        def local(manifest: Manifest) -> str:
            # An added worker resumes from rank 0's shard.
            return f"{world.rank if world.rank < manifest.world_size else 0:05d}"

        def shared(manifest: Manifest) -> list[str]:
            return files_of(manifest.extra.get("slices", {}), live["slices"])  # earlier formats have no slices

        def pick(manifest: Manifest) -> list[str]:
            return [local(manifest), *shared(manifest)]

        if world.rank == 0 and (newest := self.checkpoints.latest(verify=False)) is not None:
            fitting.newest(newest[1].manifest)
        reader = restore(self.checkpoints, world.rank, world.all_gather_json, pick, accept=fitting.accepts)
        if reader is None:
            return None
        state = SharedState(live["shared"], live["slices"])
        for name in shared(reader.manifest):
            state.add(unpack_state(reader.read(name), views=True), reader.manifest.extra["slices"][name])
        state.check()
        return {"shared": state.state, "local": unpack_state(reader.read(local(reader.manifest)))}


class StopPoller:
    """Polls in a thread of rank 0 whether the driver asks ``attempt`` to stop; if so, it sets ``asked``."""

    def __init__(self, checkpoints: Checkpoints, attempt: int) -> None:
        self.asked = threading.Event()
        self._checkpoints, self._attempt = checkpoints, attempt
        self._ended = threading.Event()
        threading.Thread(target=self._listen, name="sparkdl-stops", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._ended.set()

    def _listen(self) -> None:
        while not self._ended.wait(_POLL):
            try:
                if self._checkpoints.attempts.asked_to_stop(self._attempt):
                    self.asked.set()
                    return
            except OSError as error:  # the next poll may succeed
                logger.warning("%s cannot be polled for a stop request: %s", self._checkpoints.folder.path, error)


def _in_phases(world: World, rows: Iterator[RowFile]) -> Iterator[RowFile]:
    """Give each file a phase of its own: the driver takes a worker for stuck if the worker's phase does not change."""
    for row_file in rows:
        world.phase = f"checkpoint {row_file[0]}"
        yield row_file


def _on_rank_0(world: World, key: str, call: Callable[[], None]) -> None:
    trouble: Exception | None = None
    if world.rank == 0:
        try:
            call()
        except Exception as error:
            trouble = error
    answers = world.all_gather_json(key, {"trouble": trouble is not None})
    if trouble is not None:
        raise trouble
    if answers[0]["trouble"]:
        raise PeerLost(f"rank 0 failed to {key}.")
