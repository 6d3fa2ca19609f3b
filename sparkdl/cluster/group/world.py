"""The gang as a member sees it, and how members talk."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sparkdl.errors import PeerLost
from sparkdl.telemetry.clock import Clock

DATA = "data"  # the axis along which replicas lie


@dataclass
class Group:
    """Collectives along one axis of the gang; in a group of one they do nothing.

    Attributes:
        rank: this member's rank in the group.
        size: members of the group.
        handle: the ``torch.distributed`` process group; None in a group of one.
    """

    rank: int = 0
    size: int = 1
    handle: Any = None

    def sum_(self, tensor: Tensor, *, wait: bool = True) -> Any:
        """Sum a tensor over the members, in place.

        Args:
            tensor: of a dtype that the backend can add.
            wait: False returns at once, with the work to wait for; the tensor has to be contiguous then.
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
        """Average a floating-point tensor over the members, in place."""
        if self.size > 1:
            self.sum_(tensor)
            tensor /= self.size

    def broadcast_(self, tensor: Tensor, *, source: int = 0) -> None:
        """Overwrite a tensor of any dtype with that of ``source``, in place."""
        if self.size > 1:
            with _dense(tensor) as dense, reaching_peers():
                # As bytes, since gloo knows few dtypes.
                dist.broadcast(dense.view(-1).view(torch.uint8), group=self.handle, group_src=source)

    def gather(self, value: Any) -> list[Any]:
        """Every member's value, in rank order, on every member; values are pickled."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with reaching_peers():
            dist.all_gather_object(values, value, group=self.handle)
        return values


@contextmanager
def _dense(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor, or a dense copy that is copied back: gloo takes the memory behind any tensor for dense."""
    dense = tensor.contiguous()
    yield dense
    if dense is not tensor:
        tensor.copy_(dense)


@dataclass
class World:
    """A member's view of its gang; a world of one is legal.

    Attributes:
        rank: this member's rank, from 0.
        size: members of the gang.
        local_rank: this member's rank among those of its host.
        device: the device this member computes on.
        attempt: which attempt this gang is, from 0.
        host: the name of this member's host.
        store: the rendezvous store, for agreements that must not go over the training group.
        axes: axis name -> size; one data axis unless a layout says otherwise.
        clock: how far the gang has come; a failure is reported with its step.
        process_group: the ``torch.distributed`` group of all members; None in a world of one.
        phase: what the work is doing, in a word; heartbeats tell it to the driver.
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
        """The group of members along an axis.

        Raises:
            ValueError: the world has no such axis.
        """
        if axis not in (self.axes or {DATA: self.size}):
            raise ValueError(f"there is no axis {axis!r}; this world has {', '.join(self.axes or [DATA])}.")
        return Group(self.rank, self.size, dist.group.WORLD if self.size > 1 else None)

    def agree(self, key: str, value: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Every member's value, in rank order, by way of the store: plain JSON, no collective.

        Rank 0 returns when all have read: the store is its own and goes with it, which may be at once.

        Raises:
            PeerLost: a member did not answer within the gang's timeout.
        """
        own = json.dumps(value)
        if self.size == 1:
            return [json.loads(own)]
        with reaching_peers():
            self.store.set(f"{key}/{self.rank}", own)
            answers = [json.loads(self.store.get(f"{key}/{rank}")) for rank in range(self.size)]
            if self.rank == 0:
                self.store.wait([f"{key}/{rank}/read" for rank in range(1, self.size)])
            else:
                self.store.set(f"{key}/{self.rank}/read", "")
            return answers

    def hear(self, key: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Rank 0's value, on every member, by way of the store: plain JSON, no collective.

        It is for what is followed by a collective, since rank 0 does not wait for the others.

        Raises:
            PeerLost: rank 0 did not say anything within the gang's timeout.
        """
        own: dict[str, Any] = json.loads(json.dumps(value))
        if self.size == 1:
            return own
        with reaching_peers():
            if self.rank == 0:
                self.store.set(key, json.dumps(value))
                return own
            heard: dict[str, Any] = json.loads(self.store.get(key))
            return heard

    def post(self, key: str, value: Mapping[str, Any]) -> None:
        """Leave this member's value in the store, for ``posted``; nobody waits."""
        with reaching_peers():
            self.store.set(f"{key}/{self.rank}", json.dumps(value))

    def posted(self, key: str) -> list[dict[str, Any]] | None:
        """Every member's value, in rank order, if all have posted theirs; None as long as they have not."""
        keys = [f"{key}/{rank}" for rank in range(self.size)]
        with reaching_peers():
            return [json.loads(self.store.get(each)) for each in keys] if self.store.check(keys) else None


@contextmanager
def reaching_peers() -> Iterator[None]:
    """Turns a failure to reach another member into ``PeerLost``, which is never taken for the first cause."""
    try:
        yield
    except dist.DistError as error:
        raise PeerLost(f"another member could not be reached: {error}") from error
    except RuntimeError as error:
        if not is_peer_failure(error):
            raise
        raise PeerLost(f"another member went away: {error}") from error


def in_a_group() -> bool:
    """Whether ``torch.distributed`` is initialized in this process."""
    return dist.is_initialized()


def is_peer_failure(error: BaseException) -> bool:
    """Whether an error, also one of user code, only says that another member has gone."""
    signs = ("Connection closed by peer", "Connection reset by peer", "Connection refused", "Broken pipe", "Timed out")
    return isinstance(error, (PeerLost, dist.DistError)) or (
        isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
    )
