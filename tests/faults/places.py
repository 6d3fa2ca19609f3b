"""Places of faults: wrapped functions of a worker's process let the faults of its rank happen.

``os.fsync`` sees each file of a checkpoint and of a shard's memory, in any thread: first the temporary file, then the
folder once the file is in it.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import Tensor

from sparkdl.training.strategies.parameter_server.client import ShardClient
from tests.faults.fault import Fault


class _Here:
    """The gang of this process: rank, clock, faults of this rank, and the step of the last batch that was made."""

    def __init__(self) -> None:
        self.rank, self.clock, self.fed = -1, None, 0
        self.faults: list[Fault] = []
        self.remembers = False  # whether the last written file is a shard's memory

    def reached(self, phase: str, step: int) -> list[str]:
        """Let faults happen; how those did that left the process alive."""
        due = [fault for fault in self.faults if (fault.phase, fault.step) == (phase, step)]
        return [fault.how for fault in due if fault.strike()]


_here = _Here()


def watch(fault: Fault, run: Any) -> None:
    """Watch a fault's place; faults of an earlier gang in this process are forgotten."""
    if _here.clock is not run.clock:
        _here.rank, _here.clock, _here.fed, _here.faults = run.rank, run.clock, run.clock.step, []
        _wrap_once()
        _watch_module(run)
    if fault.rank == run.rank:
        _here.faults.append(fault)


def watch_files(faults: Sequence[Fault]) -> None:
    """Watch only the files of checkpoints and memories, outside of gangs."""
    _here.rank, _here.clock, _here.faults = -1, None, list(faults)
    _wrap_once()


def fed(inputs: Any, target: Any) -> tuple[Any, Any]:
    """Called by an ``augment`` or a ``collate`` once for each batch of training."""
    _here.fed += 1
    _here.reached("feed", _here.fed)
    return inputs, target


@dataclass(frozen=True)
class Decode:
    """A column's ``decode``: 8 bytes are an integer. Faults of a rank happen at its first integer."""

    faults: Sequence[Fault] = ()
    firsts: Sequence[int] = ()

    def __call__(self, data: bytes) -> np.ndarray:
        value = np.frombuffer(data, np.int64)
        for fault in self.faults:
            if fault.phase == "decode" and value[0] == self.firsts[fault.rank]:
                fault.early()
        return value


def _watch_module(run: Any) -> None:
    clock, module = run.clock, run.module
    first = next(module.children(), module)  # gradients come from the loss backwards

    def backward(gradient: Tensor) -> Tensor | None:
        return gradient * float("nan") if "nan" in _here.reached("backward", clock.step + 1) else None

    def forward(module: Any, args: Any) -> None:
        if module.training:
            _here.reached("forward", clock.step + 1)
        else:
            _here.reached("validation", clock.step)

    def called(module: Any, args: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(backward)
        elif not module.training:  # a pipeline calls no whole module
            _here.reached("validation", clock.step)

    first.register_forward_hook(called)
    module.register_forward_pre_hook(forward)


@functools.cache
def _wrap_once() -> None:
    reduce, send, sync = dist.all_reduce, dist.batch_isend_irecv, os.fsync
    push, answer = ShardClient.push, ShardClient.answer

    @functools.wraps(reduce)
    def all_reduce(*args: Any, **options: Any) -> Any:
        work = reduce(*args, **options)
        if options.get("async_op"):  # as gradients are exchanged
            _here.reached("reduce", _here.clock.step + 1)
        return work

    @functools.wraps(send)
    def batch_isend_irecv(*args: Any, **options: Any) -> Any:
        works = send(*args, **options)  # as slices are exchanged
        _here.reached("reduce", _here.clock.step + 1)
        return works

    @functools.wraps(sync)
    def fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        match = re.search(r"/attempt-\d+-epoch-\d+-step-(\d+)(/manifest\.json)?", path)
        if match is not None:
            _written(path, int(match[1]), manifest=match[2] is not None)
        else:
            _remembered(path)
        sync(descriptor)

    @functools.wraps(push)
    def pushed(*args: Any) -> None:
        _here.reached("push", _here.clock.step + 1)
        push(*args)

    @functools.wraps(answer)
    def answered(*args: Any) -> int:
        _here.reached("pull", _here.clock.step + 1)
        return answer(*args)

    dist.all_reduce, dist.batch_isend_irecv, os.fsync = all_reduce, batch_isend_irecv, fsync
    ShardClient.push, ShardClient.answer = pushed, answered


def _written(path: str, step: int, *, manifest: bool) -> None:
    # A file of a checkpoint, or the folder in which it now is.
    if os.path.isdir(path):
        if os.path.exists(f"{path}/manifest.json"):
            _here.reached("renamed", step)
        return
    _half(path, [fault for fault in _here.faults if fault.step == step], "manifest" if manifest else "shard")
    _here.reached("rename" if manifest else "written", step)


def _remembered(path: str) -> None:
    if re.search(r"/shard-\d{5}-[0-9a-f]{32}", path):
        _here.remembers = True
        _half(path, _here.faults, "memory")
    elif _here.remembers and os.path.isdir(path):
        _here.remembers = False
        for fault in [fault for fault in _here.faults if fault.phase == "remembered"]:
            fault.strike()


def _half(path: str, faults: Sequence[Fault], phase: str) -> None:
    for fault in faults:
        if fault.phase == phase and not os.path.exists(fault.mark):
            if fault.how == "kill":
                os.truncate(path, os.path.getsize(path) // 2)
            fault.strike()
