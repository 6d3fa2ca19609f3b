"""Checkpoints are written in a thread of each member, while training goes on.

    the step loop   copies what it will change, and goes on
    the thread      packs the copy, writes and hashes it, and posts the digest in the rendezvous store
    rank 0's thread waits for the digests of all members, and commits

One checkpoint is under way at a time: the step loop waits for the one before it. The store is asked, never waited for
inside it, so that the step loop's own agreements come through, and so that a thread ends when its gang does.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from sparkdl.checkpoint.manifest import Digest
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.group.world import World
from sparkdl.io.serialization import pack_pieces
from sparkdl.telemetry.clock import Clock
from sparkdl.telemetry.emit import notify, record, span

_LOOK = 0.02  # seconds between two looks for the other members' digests
_NICE = 10  # a tenth of a core where all of it is wanted
_PATIENCE = 10.0  # seconds that a failed gang waits for its thread to end


@dataclass(frozen=True)
class Checkpoint:
    """What one member saves at one time.

    Attributes:
        clock: the time.
        shards: name -> this member's state, which nobody changes any more.
        pinned: whether it is of an epoch's end.
        last: whether the training is over with it.
        extra: for the manifest.
    """

    clock: Clock
    shards: Mapping[str, Any]
    pinned: bool = False
    last: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


class Saver:
    """Saves one checkpoint after another; see the module.

    Args:
        checkpoints: where.
        world: the gang.

    Attributes:
        cost: seconds that the last checkpoint took, from its copy to its end; None before there is one.
    """

    def __init__(self, checkpoints: Checkpoints, world: World) -> None:
        self.cost: float | None = None
        self._checkpoints = checkpoints
        self._world = replace(world)  # the gang's own forgets its store when it ends
        self._given_up = threading.Event()
        self._under_way: Future[None] | None = None
        self._thread: threading.Thread | None = None

    def save(self, checkpoint: Checkpoint) -> None:
        """Begin to save, when the one before is saved.

        Raises:
            Exception: what the one before raised.
        """
        self.wait()
        done: Future[None] = Future()
        self._under_way = done
        self._thread = threading.Thread(target=self._run, args=(checkpoint, done), name="sparkdl-saver")
        self._thread.daemon = True
        self._thread.start()

    def check(self) -> None:
        """Raise what the last one has raised, if it is over."""
        if self._under_way is not None and self._under_way.done():
            self.wait()

    def wait(self) -> None:
        """Return when nothing is under way.

        Raises:
            Exception: what it raised, such as Fenced.
        """
        if self._under_way is not None:
            found, self._under_way = self._under_way, None
            found.result()

    def close(self) -> None:
        """End the thread, whatever it is doing; what it has not committed does not exist."""
        self._given_up.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE)

    def _run(self, checkpoint: Checkpoint, done: Future[None]) -> None:
        try:
            _yield_to_training()
            began = time.monotonic()
            with span("save checkpoint", clock=checkpoint.clock):
                self._save(checkpoint)
            self.cost = time.monotonic() - began
            done.set_result(None)
        except BaseException as error:  # wait() raises it
            done.set_exception(error)

    def _save(self, checkpoint: Checkpoint) -> None:
        name = self._checkpoints.name(checkpoint.clock, self._world.attempt)
        answer: dict[str, Any] = {}
        try:
            written = [
                self._checkpoints.write(name, shard, *pack_pieces(state)) for shard, state in checkpoint.shards.items()
            ]
            answer["digests"] = [each.result().to_json() for each in written]
        except OSError as error:
            answer["trouble"] = str(error)
        key = f"saved {name}"
        self._world.post(key, answer)
        if self._world.rank == 0:
            answers = self._world.posted(key)
            while answers is None:
                if self._given_up.wait(_LOOK):
                    return
                answers = self._world.posted(key)
            self._commit(name, checkpoint, answers)

    def _commit(self, name: str, checkpoint: Checkpoint, answers: Sequence[Mapping[str, Any]]) -> None:
        trouble = [each["trouble"] for each in answers if "trouble" in each]
        if not trouble:
            digests = [Digest.from_json(each) for answer in answers for each in answer["digests"]]
            try:
                self._checkpoints.commit(
                    name,
                    digests,
                    checkpoint.clock,
                    world_size=self._world.size,
                    pinned=checkpoint.pinned,
                    extra=checkpoint.extra,
                )
            except OSError as error:
                trouble.append(str(error))
        goes_on = checkpoint.pinned and not checkpoint.last  # another gang may take over now
        record("checkpoint", clock=checkpoint.clock, name=name, pinned=goes_on, trouble=trouble[:1])
        if trouble:
            notify(f"there is no checkpoint {name}: {trouble[0]}")


def _yield_to_training() -> None:
    """Lower this thread's priority, and that of the threads it starts: what training leaves idle is enough for it.

    Not to the lowest there is, with which a checkpoint would take minutes on a host that others keep busy. Where the
    container's rules forbid it, saving is as important as training.
    """
    if sys.platform != "linux":  # elsewhere it would be the whole process's
        return
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), max(_NICE, os.getpriority(os.PRIO_PROCESS, 0)))


def copied(nested: Any) -> Any:
    """A state that stays as it is: tensors, on the CPU then, and arrays are copied, and the dicts and lists of them.

    What is one tensor under several names stays one.
    """
    return _copied(nested, {})


def _copied(nested: Any, known: dict[object, Tensor]) -> Any:
    if isinstance(nested, Tensor):
        same = (nested.data_ptr(), nested.shape, nested.stride(), nested.dtype) if nested.numel() else object()
        if same not in known:
            found = nested.detach()
            known[same] = found.clone() if found.device.type == "cpu" else found.cpu()
        return known[same]
    if isinstance(nested, np.ndarray):
        return nested.copy()
    if isinstance(nested, dict):
        plain = {key: _copied(value, known) for key, value in nested.items()}
        return Counter(plain) if type(nested) is Counter else plain
    if type(nested) in (list, tuple):
        return type(nested)(_copied(each, known) for each in nested)
    return nested
