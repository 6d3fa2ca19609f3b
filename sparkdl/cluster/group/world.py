"""A worker's view of its gang, its collectives, and messages by way of the store."""

from __future__ import annotations

import json
import logging
import pickle
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from sparkdl.cluster.group.peers import PendingMessages, reaching_peers
from sparkdl.data.clock import Clock

logger = logging.getLogger(__name__)

DATA = "data"  # the axis of all workers


@dataclass(frozen=True)
class Axis:
    """How the gang's workers are divided into groups, the same on every worker.

    Attributes:
        groups: disjoint groups of ranks of the gang, each in ascending order; a rank in none is alone.
        hosts: the host of each worker of the gang, by rank.
        timeout: seconds until a collective in a group fails.
        world: the world, for connections of a strategy's own; None outside of a gang.
    """

    groups: tuple[tuple[int, ...], ...]
    hosts: tuple[str, ...]
    timeout: float
    world: World | None = field(default=None, compare=False, repr=False)


@dataclass
class Group:
    """Collectives along one axis of the gang; in a group of one they do nothing.

    Attributes:
        rank: this worker's rank in the group.
        size: workers of the group.
        handle: the ``torch.distributed`` process group; None in a group of one.
        ranks: the ranks of the group's workers in the gang, in ascending order.
        axis: the axis of the group; ``sparkdl.cluster.group.mesh`` divides it further.
    """

    rank: int = 0
    size: int = 1
    handle: Any = None
    ranks: tuple[int, ...] = ()
    axis: Axis | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of the group's workers, in the order of their ranks."""
        return () if self.axis is None else tuple(self.axis.hosts[rank] for rank in self.ranks)

    @property
    def nccl(self) -> bool:
        """Whether the group's backend is NCCL, which needs tensors on GPUs."""
        return self.handle is not None and dist.get_backend(self.handle) == "nccl"

    def sum_(self, tensor: Tensor, *, to: int | None = None, wait: bool = True) -> Any:
        """Sum a tensor over the workers, in place; its dtype must be one that the backend can add.

        Args:
            tensor: overwritten by the sum.
            to: the only rank of the group that gets the sum; the others' tensors are then undefined. Default: all.
            wait: whether to return only when the sum is there.

        Returns:
            The pending work if ``wait`` is False; else None, as in a group of one.

        Raises:
            ValueError: ``wait`` is False and the tensor is not contiguous.
            PeerLost: another worker is unreachable; every collective raises it.
        """
        if self.size == 1:
            return None
        with _dense(tensor, wait=wait) as dense, reaching_peers():
            options: dict[str, Any] = {"group": self.handle, "async_op": self.nccl or not wait}
            work = dist.all_reduce(dense, **options) if to is None else dist.reduce(dense, group_dst=to, **options)
            return _result(work, wait=wait)

    def mean_(self, tensor: Tensor) -> None:
        """Average a floating-point tensor over the workers, in place."""
        if self.size > 1:
            self.sum_(tensor)
            tensor /= self.size

    def broadcast_(self, tensor: Tensor, *, source: int = 0, wait: bool = True) -> Any:
        """Overwrite a tensor of any dtype with the tensor of rank ``source`` of the group, in place.

        ``wait``, the result and errors are as of ``sum_``.
        """
        if self.size == 1:
            return None
        with _dense(tensor, wait=wait) as dense, reaching_peers():
            # Bytes, since gloo supports few dtypes.
            data, later = dense.view(-1).view(torch.uint8), self.nccl or not wait
            return _result(dist.broadcast(data, group=self.handle, group_src=source, async_op=later), wait=wait)

    def send_recv(self, tensor: Tensor, peers: Sequence[int]) -> list[Tensor]:
        """Send a tensor to these ranks, and return theirs in the same order; the tensors have one shape and dtype.

        Each of the ``peers`` names this rank in turn, and sends its tensors in the same order.
        """
        # Gloo sends from the host's memory only.
        staged = tensor.cpu() if peers and dist.get_backend(self.handle) == "gloo" else tensor
        received = [torch.empty_like(staged, memory_format=torch.contiguous_format) for _ in peers]
        self._send_and_receive([staged.contiguous()] * len(peers), received, peers).wait()
        return [part.to(tensor.device) for part in received]

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
        # Between hosts with several workers each, gloo's ring sends fewer bytes over a host's link.
        if self._sends_directly(tensor) and len({*self.hosts}) in (1, self.size):
            return self._trade([tensor.view(-1)] * self.size, gathered.view(self.size, -1).unbind(), wait=wait)
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
        if self._sends_directly(tensor):
            return self._trade(tensor.chunk(self.size), received.chunk(self.size), wait=wait)
        return self._start(dist.all_to_all_single, received, tensor, wait=wait)

    def reduce_scatter_into(self, summed: Tensor, tensor: Tensor) -> None:
        """Sum the ``i``-th of ``size`` equal parts of a tensor over the workers, for rank ``i``; nothing is averaged.

        Args:
            summed: the sum of the parts for this worker; contiguous.
            tensor: contiguous, of the same shape on every worker, with ``size`` times the elements of ``summed``.
        """
        parts = tensor.view(self.size, *summed.shape)
        if self.size == 1:
            summed.copy_(parts[0])
        elif self._sends_directly(tensor):
            peers = [(self.rank + far) % self.size for far in range(1, self.size)]
            received = torch.empty_like(parts[1:])
            self._send_and_receive([parts[rank] for rank in peers], received.unbind(), peers).wait()
            torch.add(parts[self.rank], received[0], out=summed)
            for part in received[1:]:
                summed += part
        else:
            collective = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
            self._start(collective, summed, tensor, wait=True)

    def all_to_all_rows(self, parts: Sequence[Tensor], rows: Sequence[int] = ()) -> list[Tensor]:
        """Send the rows of ``parts[i]`` to rank ``i``; return the rows that each rank sent to this one.

        Args:
            parts: one tensor ``[rows, ...]`` for each rank. The numbers of rows may differ, and may be 0; dtype and row
                shape are the same on all workers, which nothing checks.
            rows: the numbers of rows that come from each rank, if all workers know theirs; else another exchange asks.

        Returns:
            ``size`` tensors in the order of their senders, on the device of ``parts``.
        """
        if self.size == 1:
            return [parts[0]]
        by_messages = not self.nccl
        # Gloo sends from the host. Each tensor is copied once, though all ranks may get the same one.
        copies = {id(part): (part.cpu() if by_messages else part.cuda()).contiguous() for part in parts}
        staged = [copies[id(part)] for part in parts]
        if not rows:
            counts = torch.tensor([len(part) for part in staged], device=staged[0].device)
            self.all_to_all_into(incoming := torch.empty_like(counts), counts)
            rows = incoming.tolist()
        received = staged[0].new_empty((sum(rows), *staged[0].shape[1:]))
        if by_messages:
            self._trade(staged, torch.split(received, [*rows]), wait=True)
        else:
            with reaching_peers():
                options: dict[str, Any] = {"output_split_sizes": [*rows], "input_split_sizes": [*map(len, staged)]}
                options |= {"group": self.handle, "async_op": True}
                _result(dist.all_to_all_single(received, torch.cat(staged), **options), wait=True)
        return [*torch.split(received.to(parts[0].device), [*rows])]

    def _sends_directly(self, tensor: Tensor) -> bool:
        """Whether workers send each other messages: gloo's own collectives wait with a message for a message."""
        return not tensor.is_cuda and dist.get_backend(self.handle) == "gloo"

    def _trade(self, sent: Sequence[Tensor], received: Sequence[Tensor], *, wait: bool) -> Any:
        if received[self.rank].data_ptr() != sent[self.rank].data_ptr():
            received[self.rank].copy_(sent[self.rank])
        peers = [(self.rank + far) % self.size for far in range(1, self.size)]
        messages = self._send_and_receive([sent[rank] for rank in peers], [received[rank] for rank in peers], peers)
        return _result(messages, wait=wait)

    def _send_and_receive(
        self, sent: Sequence[Tensor], received: Sequence[Tensor], peers: Sequence[int]
    ) -> PendingMessages:
        # Receives first: gloo sends a tensor when its receiver is ready; that message must not queue behind data.
        pending = [
            dist.P2POp(kind, part, group=self.handle, group_peer=peer)
            for kind, parts in ((dist.irecv, received), (dist.isend, sent))
            for part, peer in zip(parts, peers, strict=True)
            if part.numel()
        ]
        with reaching_peers():
            return PendingMessages(dist.batch_isend_irecv(pending) if pending else [])

    def _start(self, collective: Callable[..., Any], output: Tensor, tensor: Tensor, *, wait: bool) -> Any:
        with reaching_peers():
            return _result(collective(output, tensor, group=self.handle, async_op=self.nccl or not wait), wait=wait)

    def gather(self, value: Any) -> list[Any]:
        """All workers' values in rank order, on every worker; values are pickled."""
        if self.size == 1:
            return [value]
        packed = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = [int(size) for size in self._all_gather(torch.tensor([len(packed)]))]
        rows = self._all_gather(F.pad(packed, (0, max(sizes) - len(packed))))
        return [pickle.loads(bytes(row[:size].numpy())) for row, size in zip(rows, sizes, strict=True)]  # noqa: S301

    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        tensor = tensor.cuda() if self.nccl else tensor
        rows = [torch.empty_like(tensor) for _ in range(self.size)]
        with reaching_peers():
            _result(dist.all_gather(rows, tensor, group=self.handle, async_op=self.nccl), wait=True)
        return [row.cpu() for row in rows]


def _result(work: Any, *, wait: bool) -> Any:
    """The pending work, or None once it is done; ``work`` is None if it already is.

    Under NCCL every collective starts asynchronously: since torch 2.8 only the ``wait()`` of such a work times out.
    """
    if not wait:
        return work
    if work is not None:
        work.wait()
    return None


@contextmanager
def _dense(tensor: Tensor, *, wait: bool) -> Iterator[Tensor]:
    """Yield a contiguous tensor and copy it back: gloo ignores strides."""
    if not wait and not tensor.is_contiguous():
        raise ValueError("a tensor that is sent without waiting has to be contiguous.")
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
        store: the rendezvous store, for messages outside the training group; default: of this process alone.
        axes: axis name -> size of this worker's group; only ``"data"``, all workers, unless a layout opens others.
        clock: epoch and step of the gang; a failure carries the step.
        process_group: the ``torch.distributed`` group of all workers; None in a world of one.
        phase: current activity as one word; heartbeats report it to the driver.
        hosts: the host of each worker, by rank; default: all on this host.
        timeout: seconds until a collective fails.
        groups: the groups of this worker along the axes that ``sparkdl.cluster.group.mesh`` opened.
        addresses: an address of each worker that the others can dial, by rank; empty outside of a gang.
        secret: a key that the driver made for this attempt, for connections that authenticate each other.
        ends: what ``on_end`` was given, called when the gang's block ends.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    attempt: int = 0
    host: str = field(default_factory=socket.gethostname)
    store: Any = field(default_factory=dist.HashStore)  # type: ignore[attr-defined]
    axes: Mapping[str, int] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    process_group: Any = None
    phase: str = "work"
    hosts: tuple[str, ...] = ()
    timeout: float = 600.0
    groups: dict[str, Group] = field(default_factory=dict, repr=False)
    addresses: tuple[str, ...] = ()
    secret: bytes = field(default=b"", repr=False)
    ends: ExitStack = field(default_factory=ExitStack, repr=False)

    def on_end(self, call: Callable[[], object]) -> None:
        """Call ``call`` when the gang's block ends, also by an error; the last one that was given comes first.

        After an error, an error of ``call`` is only logged, so that the first one stays the cause.
        """

        def end(kind: object, error: BaseException | None, trace: object) -> None:
            try:
                call()
            except Exception:
                if error is None:
                    raise
                logger.warning("a call at the end of the gang failed, too", exc_info=True)

        self.ends.push(end)

    def group(self, axis: str = DATA) -> Group:
        """This worker's group along an axis; connects nothing, so any worker may ask alone.

        Raises:
            ValueError: the world has no such axis.
        """
        if axis in self.groups:
            return self.groups[axis]
        if axis != DATA:
            raise ValueError(f"there is no axis {axis!r}; this world has {', '.join(self.axes or [DATA])}.")
        ranks = tuple(range(self.size))
        every = Axis((ranks,), self.hosts or (self.host,) * self.size, self.timeout, self)
        return Group(self.rank, self.size, dist.group.WORLD if self.size > 1 else None, ranks, every)

    def release(self) -> None:
        """Drop this world's references to process groups."""
        self.process_group = None
        self.groups.clear()

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
