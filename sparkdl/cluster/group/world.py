"""A worker's view of its gang, its collectives, and messages by way of the store."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sparkdl.errors import PeerLost
from sparkdl.telemetry.clock import Clock

DATA = "data"  # the axis of the replicas


@dataclass
class Group:
    """Collectives along one axis of the gang; in a group of one they do nothing.

    Attributes:
        rank: this worker's rank in the group.
        size: workers of the group.
        handle: the ``torch.distributed`` process group; None in a group of one.
    """

    rank: int = 0
    size: int = 1
    handle: Any = None

    def sum_(self, tensor: Tensor, *, wait: bool = True) -> Any:
        """Sum a tensor over the workers, in place; its dtype must be one that the backend can add.

        Returns:
            The pending work if ``wait`` is False; else None, as in a group of one.

        Raises:
            ValueError: ``wait`` is False and the tensor is not contiguous.
            PeerLost: another worker is unreachable; every collective raises it.
        """
        if self.size == 1:
            return None
        if not wait:
            if not tensor.is_contiguous():
                raise ValueError("a tensor that is summed without waiting has to be contiguous.")
            with reaching_peers():
                return dist.all_reduce(tensor, group=self.handle, async_op=True)
        with _dense(tensor) as dense, reaching_peers():
            dist.all_reduce(dense, group=self.handle)
        return None

    def mean_(self, tensor: Tensor) -> None:
        """Average a floating-point tensor over the workers, in place."""
        if self.size > 1:
            self.sum_(tensor)
            tensor /= self.size

    def broadcast_(self, tensor: Tensor, *, source: int = 0) -> None:
        """Overwrite a tensor of any dtype with the tensor of rank ``source``, in place."""
        if self.size > 1:
            with _dense(tensor) as dense, reaching_peers():
                # Bytes, since gloo supports few dtypes.
                dist.broadcast(dense.view(-1).view(torch.uint8), group=self.handle, group_src=source)

    def all_gather_into(self, gathered: Tensor, tensor: Tensor, *, wait: bool = True) -> Any:
        """Copy every worker's tensor into ``gathered`` in rank order, on every worker.

        Args:
            gathered: contiguous, ``size`` times the elements of ``tensor``, of its dtype.
            tensor: contiguous, of the same shape on every worker.
            wait: as of ``sum_``, with the same result.
        """
        if self.size == 1:
            gathered.view_as(tensor).copy_(tensor)
            return None
        # torch 2.13 warns about the older name.
        collective = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        return self._start(collective, gathered.view(-1), tensor.view(-1), wait=wait)

    def all_to_all_into(self, received: Tensor, tensor: Tensor, *, wait: bool = True) -> Any:
        """Send the ``i``-th of ``size`` equal parts of a tensor to rank ``i``.

        Args:
            received: the parts for this worker in the order of their senders; contiguous, as ``tensor``.
            tensor: contiguous, of the same shape on every worker; ``size`` divides its first dimension.
            wait: as of ``sum_``, with the same result.
        """
        if self.size == 1:
            received.copy_(tensor)
            return None
        return self._start(dist.all_to_all_single, received, tensor, wait=wait)

    def _start(self, collective: Callable[..., Any], output: Tensor, tensor: Tensor, *, wait: bool) -> Any:
        with reaching_peers():
            return collective(output, tensor, group=self.handle, async_op=not wait)

    def gather(self, value: Any) -> list[Any]:
        """All workers' values in rank order, on every worker; values are pickled."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with reaching_peers():
            dist.all_gather_object(values, value, group=self.handle)
        return values


@contextmanager
def _dense(tensor: Tensor) -> Iterator[Tensor]:
    """Yield a contiguous tensor and copy it back: gloo ignores strides."""
    dense = tensor.contiguous()
    yield dense
    if dense is not tensor:
        tensor.copy_(dense)


@dataclass
class World:
    """A worker's view of its gang; a world of one is valid.

    Attributes:
        rank: this worker's rank, from 0.
        size: workers of the gang.
        local_rank: this worker's rank among the workers of its host.
        device: this worker's device.
        attempt: the number of the attempt, from 0.
        host: the name of this worker's host.
        store: the rendezvous store, for messages outside the training group.
        axes: axis name -> size; one data axis unless a layout sets others.
        clock: epoch and step of the gang; a failure carries the step.
        process_group: the ``torch.distributed`` group of all workers; None in a world of one.
        phase: current activity as one word; heartbeats report it to the driver.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    attempt: int = 0
    host: str = field(default_factory=socket.gethostname)
    store: Any = None
    axes: Mapping[str, int] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    process_group: Any = None
    phase: str = "work"

    def group(self, axis: str = DATA) -> Group:
        """The group of workers along an axis; raises ValueError if the world has no such axis."""
        if axis not in (self.axes or {DATA: self.size}):
            raise ValueError(f"there is no axis {axis!r}; this world has {', '.join(self.axes or [DATA])}.")
        return Group(self.rank, self.size, dist.group.WORLD if self.size > 1 else None)

    def all_gather_json(self, key: str, value: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Gather every worker's value in rank order through the store: plain JSON, no collective.

        Rank 0 owns the store and may leave right after; therefore it returns only when all have read.

        Raises:
            PeerLost: a worker did not answer within the gang's timeout.
        """
        text = json.dumps(value)
        if self.size == 1:
            return [json.loads(text)]
        with reaching_peers():
            self.store.set(f"{key}/{self.rank}", text)
            answers = [*map(json.loads, self.store.multi_get([f"{key}/{rank}" for rank in range(self.size)]))]
            if self.rank == 0:
                self.store.wait([f"{key}/{rank}/read" for rank in range(1, self.size)])
            else:
                self.store.set(f"{key}/{self.rank}/read", "")
            return answers

    def broadcast_json(self, key: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Broadcast rank 0's value through the store; a collective must follow, since rank 0 does not wait.

        Raises:
            PeerLost: rank 0 published nothing within the gang's timeout.
        """
        text = json.dumps(value)
        with reaching_peers():
            if self.rank == 0 and self.size > 1:
                self.store.set(key, text)
            answer: dict[str, Any] = json.loads(text if self.rank == 0 else self.store.get(key))
            return answer

    def publish(self, key: str, value: Mapping[str, Any]) -> None:
        """Publish this worker's value in the store for ``collect``, without waiting."""
        with reaching_peers():
            self.store.set(f"{key}/{self.rank}", json.dumps(value))

    def collect(self, key: str) -> list[dict[str, Any]] | None:
        """All workers' values in rank order; None until all have published theirs."""
        keys = [f"{key}/{rank}" for rank in range(self.size)]
        with reaching_peers():
            return [*map(json.loads, self.store.multi_get(keys))] if self.store.check(keys) else None


@contextmanager
def reaching_peers() -> Iterator[None]:
    """Convert a failure to reach another worker into ``PeerLost``, which is never taken for the first cause."""
    try:
        yield
    except RuntimeError as error:  # as are all errors of torch.distributed
        if not is_peer_failure(error):
            raise
        raise PeerLost(f"another worker is unreachable: {error}") from error


def has_gloo() -> bool:
    """Whether torch was built with gloo, the backend of gangs on CPUs."""
    return dist.is_available() and dist.is_gloo_available()


def in_a_group() -> bool:
    """Whether ``torch.distributed`` is initialized in this process."""
    return dist.is_initialized()


def is_peer_failure(error: BaseException) -> bool:
    """Whether an error, also one of user code, only reports the loss of another worker."""
    signs = ("Connection closed by peer", "Connection reset by peer", "Connection refused", "Broken pipe", "Timed out")
    text = str(error)
    # Gloo's errors are plain RuntimeErrors, which begin with the path of their source.
    of_gloo = isinstance(error, RuntimeError) and "gloo/" in text and any(sign in text for sign in signs)
    return isinstance(error, (PeerLost, dist.DistError)) or of_gloo
