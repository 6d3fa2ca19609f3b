"""Who is in the gang, and how its members talk.

``join`` is the rendezvous, the same on every cluster: rank 0 opens a store on an address that the others can dial
and on a port that the system chooses, every member publishes a line about itself through the ``exchange`` that its
launcher passes in, and all connect. Every key in the store begins with the run's id and attempt, so that nothing
left over from an earlier attempt is ever read. Neither the store nor gloo authenticates or encrypts: they are for
networks on which the cluster's own traffic may be plain too.
"""

from __future__ import annotations

import datetime
import gc
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

# Before there is any group: its functions have the world's group as a default argument. Imported inside a gang, as the
# first optimizer of a process does by way of torch._dynamo, it would keep that group, and its peers waiting, for ever.
import torch.distributed.nn.functional
from torch import Tensor
from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore

from sparkdl.cluster.group.network import Address, interface_of, listen
from sparkdl.errors import PeerLost
from sparkdl.telemetry.clock import Clock

Exchange = Callable[[str], Sequence[str]]
"""Gives every member's line to every member, in rank order; blocks until all have called it."""

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


@dataclass(frozen=True)
class Meeting:
    """What a member needs to know to join its gang.

    Attributes:
        rank: this member's rank.
        size: members of the gang.
        run: an id that no other gang has.
        attempt: which attempt of the run this is.
        address: an address of this host that the other members can dial.
        timeout: seconds after which a collective, or a member that is waited for, is given up.
        device: ``"cpu"``, or ``"cuda"`` for the GPU of this member's local rank.
    """

    rank: int
    size: int
    run: str
    attempt: int
    address: Address
    timeout: float = 600.0
    device: str = "cpu"

    @property
    def prefix(self) -> str:
        """What every key of this gang begins with."""
        return f"{self.run}/{self.attempt}"


@dataclass(frozen=True)
class Invitation:
    """Every member's line, and rank 0's listening store."""

    lines: list[dict[str, Any]]
    store: Any


def meet(meeting: Meeting, exchange: Exchange) -> Invitation:
    """Open the store on rank 0 and exchange every member's line; calls ``exchange`` exactly once, whatever happens.

    Raises:
        PeerLost: another member says in its line that it cannot take part.
    """
    line: dict[str, Any] = {"host": socket.gethostname(), "address": meeting.address.host}
    store, trouble = None, None
    if meeting.rank == 0 and meeting.size > 1:
        try:
            listening = listen(meeting.address)
            line["port"] = listening.getsockname()[1]
            store = _store(meeting, meeting.address.host, line["port"], listening)
        except Exception as error:  # the others wait for this member's line
            trouble, line["trouble"] = error, str(error)
    lines = [json.loads(other) for other in exchange(json.dumps(line))]
    if trouble is not None:
        raise trouble
    for rank, other in enumerate(lines):
        if "trouble" in other:
            raise PeerLost(f"rank {rank} cannot take part: {other['trouble']}")
    return Invitation(lines, store)


@contextmanager
def join(meeting: Meeting, invitation: Invitation) -> Iterator[World]:
    """The world, with ``torch.distributed`` ready, until the block ends.

    Environment variables that are set for the gang are set back, and the process group is destroyed, whatever
    happens inside: a Python worker is used again by the next task.
    """
    lines = invitation.lines
    local_rank = sum(line["host"] == lines[meeting.rank]["host"] for line in lines[: meeting.rank])
    device = torch.device("cuda", local_rank) if meeting.device == "cuda" else torch.device("cpu")
    world = World(meeting.rank, meeting.size, local_rank, device, meeting.attempt, lines[meeting.rank]["host"])
    with _environment(meeting, local_rank):
        if meeting.size == 1:
            store = HashStore()
        else:
            store = invitation.store or _store(meeting, lines[0]["address"], lines[0]["port"], None)
        world.store = PrefixStore(meeting.prefix, store)
        try:
            _initialise(meeting, world)
            yield world
        finally:
            world.store = None
            _leave()


def _initialise(meeting: Meeting, world: World) -> None:
    if dist.is_initialized():
        # Left behind by somebody else's task in a reused Python worker; nobody can use it any more.
        dist.destroy_process_group()
    with reaching_peers():
        dist.init_process_group(
            "nccl" if world.device.type == "cuda" else "gloo",
            store=PrefixStore("group", world.store),
            rank=meeting.rank,
            world_size=meeting.size,
            timeout=datetime.timedelta(seconds=meeting.timeout),
        )
    world.process_group = dist.group.WORLD


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    # A model's cycles would keep its memory in a reused process; and a group's sockets close with its last reference,
    # and a peer in a collective waits until they do.
    gc.collect()


def _store(meeting: Meeting, host: str, port: int, listening: socket.socket | None) -> Any:
    timeout = datetime.timedelta(seconds=meeting.timeout)
    with reaching_peers():
        if listening is None:
            return TCPStore(host, port, None, False, timeout=timeout)
        return TCPStore(
            host, port, None, True, timeout=timeout, wait_for_workers=False, master_listen_fd=listening.detach()
        )


@contextmanager
def _environment(meeting: Meeting, local_rank: int) -> Iterator[None]:
    """The variables that torch and user code look for, set for the gang and set back afterwards."""
    interface = interface_of(meeting.address.host)
    wanted = {
        "RANK": str(meeting.rank),
        "WORLD_SIZE": str(meeting.size),
        "LOCAL_RANK": str(local_rank),
        **({"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}),
    }
    # What an outer launcher left would send user code that calls init_process_group() to the wrong place.
    stale = ("MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID")
    before = {name: os.environ.get(name) for name in (*wanted, *stale)}
    for name in stale:
        os.environ.pop(name, None)
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


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
