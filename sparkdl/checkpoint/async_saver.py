"""Asynchronous checkpoints: a thread of each worker writes while training continues.

    the step loop      copies the state, a GPU's within its memory, and continues; it writes rows of tables itself
    the thread         moves a GPU's copy to the host on a copy stream, packs, writes and hashes it, and posts the
                       digest in the rendezvous store
    rank 0's thread    polls for all workers' digests, and commits

The step loop waits for the last checkpoint before the next one. Threads poll the store and never block in it, so the
step loop's own messages pass, and threads end with their gang.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparkdl.checkpoint.manifest import Digest
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.group.world import World
from sparkdl.data.clock import Clock
from sparkdl.io.serialization import pack_pieces
from sparkdl.io.threads import in_background
from sparkdl.telemetry.emit import notify, record, span

_POLL = 0.02  # seconds between two polls for the other workers' digests
_NICE = 10  # a tenth of a core if training wants all of it
_DOWNLOAD = 16 << 20  # bytes that a GPU's copy moves to the host at a time
_PATIENCE = 10.0  # seconds that a failed gang waits for its thread to end


@dataclass(frozen=True)
class Checkpoint:
    """One worker's state to save."""

    clock: Clock
    shards: Mapping[str, Any]  # name -> state, which nobody modifies
    index: Mapping[str, Any] = field(default_factory=dict)  # shared shard -> its tensors, for the manifest
    pinned: bool = False  # whether an epoch ended
    last: bool = False  # whether training ended
    extra: Mapping[str, Any] = field(default_factory=dict)  # for the manifest


RowFile = tuple[str, Any, Sequence[Mapping[str, Any]]]
"""Name, state and index of a file with rows of tables."""


@dataclass(frozen=True)
class SaveStatus:
    """The step of the newest committed checkpoint, as rank 0 knows it, and why the last one was not committed."""

    step: int | None
    trouble: str | None = None

    def __str__(self) -> str:
        newest = "it has no checkpoint" if self.step is None else f"its newest checkpoint is of step {self.step}"
        return f"{newest}, since {self.trouble}" if self.trouble else newest


class Saver:
    """Saves one checkpoint after another in a thread; ``step`` is of the checkpoint that the run resumed from."""

    def __init__(self, checkpoints: Checkpoints, world: World, step: int | None = None) -> None:
        # Seconds that the last checkpoint took after its copy, and to write rows of tables; None before the first one.
        self.cost: float | None = None
        self._saved = SaveStatus(step)
        self._checkpoints = checkpoints
        self._world = replace(world)  # the original loses its store when the gang ends
        self._given_up = threading.Event()
        self._last: Future[None] | None = None
        self._unchecked: Future[None] | None = None  # the last one, until its error is raised

    def save(self, checkpoint: Checkpoint, rows: Iterable[RowFile] = ()) -> None:
        """Wait for the last checkpoint, raise its error, if any, write rows, and start to save the next checkpoint."""
        self.wait()
        began = time.monotonic()
        answer = self._write_rows(checkpoint, rows)
        spent = time.monotonic() - began
        device = self._world.device
        # A GPU copies the state when it has run the kernels before.
        ready = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
        waiting = [checkpoint]  # the thread takes it, so that nothing holds a GPU's copy once the host has one
        save = partial(self._save, waiting, answer, ready, spent)
        self._last = self._unchecked = in_background(save, "sparkdl-saver")

    def check(self) -> None:
        """Raise the last checkpoint's error, if it has failed; does not wait."""
        if self._unchecked is not None and self._unchecked.done():
            self.wait()

    def wait(self) -> SaveStatus:
        """Wait until no checkpoint is in progress; raises its error, such as Fenced."""
        if self._unchecked is not None:
            last, self._unchecked = self._unchecked, None
            last.result()
        return self._saved

    def close(self) -> None:
        """End the thread; a checkpoint without a commit does not exist."""
        self._given_up.set()
        if self._last is not None:
            futures.wait([self._last], _PATIENCE)

    def _write_rows(self, checkpoint: Checkpoint, rows: Iterable[RowFile]) -> dict[str, Any]:
        """Write one file after another, from live memory; return this worker's part of the answer."""
        name = self._checkpoints.name(checkpoint.clock, self._world.attempt)
        answer: dict[str, Any] = {"index": {**checkpoint.index}, "digests": []}
        with self._trouble(answer):
            for shard, state, index in rows:
                digest = self._checkpoints.write(name, shard, *pack_pieces(state)).result()
                answer["digests"].append(asdict(digest))
                answer["index"][shard] = index
        return answer

    @contextmanager
    def _trouble(self, answer: dict[str, Any]) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            answer["trouble"] = f"rank {self._world.rank} on {self._world.host}: {error}"

    def _save(
        self, waiting: list[Checkpoint], answer: dict[str, Any], ready: torch.cuda.Event | None, spent: float
    ) -> None:
        _yield_to_training()
        began, checkpoint = time.monotonic(), waiting.pop()
        with span("save checkpoint", clock=checkpoint.clock):
            checkpoint = replace(checkpoint, shards=on_host(checkpoint.shards, self._world.device, ready))
            self._write(checkpoint, answer)
        self.cost = spent + time.monotonic() - began

    def _write(self, checkpoint: Checkpoint, answer: dict[str, Any]) -> None:
        name = self._checkpoints.name(checkpoint.clock, self._world.attempt)
        with self._trouble(answer):
            shards = checkpoint.shards.items()
            written = [self._checkpoints.write(name, shard, *pack_pieces(state)) for shard, state in shards]
            answer["digests"] += [asdict(future.result()) for future in written]
        key = f"saved {name}"
        self._world.publish(key, answer)
        if self._world.rank == 0:
            while (answers := self._world.collect(key)) is None:
                if self._given_up.wait(_POLL):
                    return
            self._commit(name, checkpoint, answers)

    def _commit(self, name: str, checkpoint: Checkpoint, answers: Sequence[Mapping[str, Any]]) -> None:
        clock, pinned, size = checkpoint.clock, checkpoint.pinned, self._world.size
        trouble = [answer["trouble"] for answer in answers if "trouble" in answer]
        if not trouble:
            digests = [Digest.from_json(digest) for answer in answers for digest in answer["digests"]]
            index = {shard: entries for answer in answers for shard, entries in answer["index"].items()}
            extra = {**checkpoint.extra, "slices": index}
            try:
                self._checkpoints.commit(name, digests, clock, world_size=size, pinned=pinned, extra=extra)
            except OSError as error:
                trouble.append(str(error))
        # A gang of another size may resume at a pinned checkpoint that is not the last.
        record("checkpoint", clock=clock, name=name, pinned=pinned and not checkpoint.last, trouble=trouble[:1])
        what = f"checkpoint {name} was not saved: {trouble[0]}" if trouble else None
        self._saved = SaveStatus(self._saved.step if trouble else clock.step, what)
        if what is not None:
            notify(what)


def _yield_to_training() -> None:
    # Not to the lowest priority, at which a checkpoint would take minutes on a busy host.
    if sys.platform != "linux":  # elsewhere the call changes the whole process
        return
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), max(_NICE, os.getpriority(os.PRIO_PROCESS, 0)))


def copied(nested: Any, copy: Callable[[Tensor], Tensor] | None = None) -> Any:
    """Copy a nested state: arrays, dicts, lists and tensors; shared tensors stay shared.

    ``copy`` copies a tensor; default: on its device, or on the host if a GPU's memory does not suffice.
    """
    return _copied(nested, copy or _Copier(), {})


def on_host(copies: Any, device: torch.device, ready: torch.cuda.Event | None) -> Any:
    """Move copies to the host on a copy stream, after the event ``ready``; without one they are there."""
    if ready is None:
        return copies
    torch.cuda.set_device(device)  # a new thread begins on GPU 0
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        stream.wait_event(ready)
        return copied(copies, _Download(stream))


class _Download:
    """Copies a GPU's tensors through pinned memory: a direct copy would keep the step loop from starting kernels."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream, self._pinned = stream, torch.empty(_DOWNLOAD, dtype=torch.uint8, pin_memory=True)

    def __call__(self, tensor: Tensor) -> Tensor:
        if not tensor.is_cuda or not tensor.is_contiguous():
            return tensor.cpu()
        host = torch.empty(tensor.shape, dtype=tensor.dtype)
        source, target = (one.view(-1).view(torch.uint8) for one in (tensor, host))
        for piece, copy in zip(torch.split(source, _DOWNLOAD), torch.split(target, _DOWNLOAD), strict=True):
            pinned = self._pinned[: len(piece)].copy_(piece, non_blocking=True)
            self._stream.synchronize()
            copy.copy_(pinned)
        return host


def _copied(nested: Any, copy: Callable[[Tensor], Tensor], known: dict[object, Tensor]) -> Any:
    if isinstance(nested, Tensor):
        same = (nested.data_ptr(), nested.shape, nested.stride(), nested.dtype) if nested.numel() else object()
        if same not in known:
            known[same] = copy(nested.detach())
        return known[same]
    if isinstance(nested, np.ndarray):
        return nested.copy()
    if isinstance(nested, dict):
        plain = {key: _copied(value, copy, known) for key, value in nested.items()}
        return Counter(plain) if type(nested) is Counter else plain
    if type(nested) in (list, tuple):
        return type(nested)(_copied(item, copy, known) for item in nested)
    return nested


class _Copier:
    """Clones tensors, those of a GPU only while the rest of its memory suffices for a step."""

    def __init__(self) -> None:
        self._room: int | None = None  # bytes

    def __call__(self, tensor: Tensor) -> Tensor:
        if tensor.is_cuda:
            self._room = _room(tensor.device) if self._room is None else self._room
            if tensor.nbytes > self._room:
                return tensor.cpu()
            self._room -= tensor.nbytes
        return tensor.clone()


def _room(device: torch.device) -> int:
    """Half of the memory that no step has needed so far."""
    free, _ = torch.cuda.mem_get_info(device)
    return (free + torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device)) // 2
