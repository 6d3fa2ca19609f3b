"""A GPU that computes on the CPU and records streams, events and copies, for tests without one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from sparkdl.data.prefetch import _copy_stream

GPU = torch.device("cuda", 0)
MAIN = "main"


@dataclass
class FakeEvent:
    """An event of a stream."""

    stream: str

    def synchronize(self) -> None:
        """The CPU has computed everything."""


@dataclass
class FakeStream:
    """A stream with a name, which records what is done to it."""

    name: str
    log: list[tuple[Any, ...]]

    def record_event(self) -> FakeEvent:
        self.log.append(("event", self.name))
        return FakeEvent(self.name)

    def wait_event(self, event: FakeEvent) -> None:
        self.log.append(("wait", self.name, event.stream))

    def synchronize(self) -> None:
        self.log.append(("synchronize", self.name))


@dataclass
class FakeGpu:
    """Records, in order, what the code under test asks of ``torch.cuda`` and of tensors.

    Entries: ``("to", stream, pinned, blocking)``, ``("event", stream)``, ``("wait", stream, of)``,
    ``("record", stream)``, ``("synchronize", stream)``, ``("set_device", device)``.
    """

    log: list[tuple[Any, ...]] = field(default_factory=list)
    pinned: set[int] = field(default_factory=set)
    _current: threading.local = field(default_factory=threading.local)
    _made: int = 0

    def current_stream(self, device: Any = None) -> FakeStream:
        return getattr(self._current, "stream", None) or FakeStream(MAIN, self.log)

    def stream_of(self, device: Any = None) -> FakeStream:
        self._made += 1
        return FakeStream(f"side {self._made}", self.log)

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self._current.stream = getattr(self._current, "stream", None), stream
        try:
            yield
        finally:
            self._current.stream = before

    def kinds(self, kind: str) -> list[tuple[Any, ...]]:
        """The entries of one kind."""
        return [entry for entry in self.log if entry[0] == kind]


def install(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """Replace what the code asks of a GPU by a recording fake; tensors stay on the CPU."""
    gpu, to, empty = FakeGpu(), Tensor.to, torch.empty
    _copy_stream.cache_clear()

    def moved(tensor: Tensor, *args: Any, **options: Any) -> Tensor:
        if args and isinstance(args[0], torch.device) and args[0].type == "cuda":
            pinned = tensor.untyped_storage().data_ptr() in gpu.pinned
            gpu.log.append(("to", gpu.current_stream().name, pinned, not options.get("non_blocking", False)))
            return tensor.clone()
        return to(tensor, *args, **options)

    def pin(tensor: Tensor) -> Tensor:
        copy = tensor if tensor.untyped_storage().data_ptr() in gpu.pinned else tensor.clone()
        gpu.pinned.add(copy.untyped_storage().data_ptr())
        return copy

    def pinned_empty(*args: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        tensor = empty(*args, **options)
        return pin(tensor) if pin_memory else tensor

    monkeypatch.setattr(Tensor, "to", moved)
    monkeypatch.setattr(Tensor, "pin_memory", pin)
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: gpu.log.append(("record", stream.name)))
    monkeypatch.setattr(torch, "empty", pinned_empty)
    monkeypatch.setattr(torch.cuda, "Stream", gpu.stream_of)
    monkeypatch.setattr(torch.cuda, "stream", gpu.stream)
    monkeypatch.setattr(torch.cuda, "current_stream", gpu.current_stream)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: gpu.log.append(("set_device", device)))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: gpu.log.append(("empty_cache",)))
    return gpu
