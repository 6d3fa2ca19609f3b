"""The rendezvous of a gang, the same on every cluster.

Rank 0 opens a store on an address that the others can dial, on a port that the system chooses. Every worker publishes
one line about itself through its launcher's ``all_gather``; then all connect. Keys in the store begin with the run's id
and the attempt, which separates attempts. Neither the store nor gloo authenticates or encrypts: run them only on
networks that may see the cluster's traffic in plain text.
"""

from __future__ import annotations

import datetime
import gc
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.distributed as dist

# Import this before any group exists: its functions bind the world's group as a default argument. An import inside a
# gang, such as the first optimizer's by way of torch._dynamo, would keep that group alive and its peers waiting.
import torch.distributed.nn.functional
from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore
from torch.distributed.distributed_c10d import _abort_process_group

from sparkdl.cluster.group.devices import choose, find_gpus
from sparkdl.cluster.group.peers import reaching_peers
from sparkdl.cluster.group.world import World
from sparkdl.errors import PeerLost
from sparkdl.net.addresses import interface_of, listen

AllGather = Callable[[str], Sequence[str]]
"""Gives every worker's line to every worker, in rank order; blocks until all have called it."""

_NCCL_ERRORS = {
    # ``wait()`` blocks the worker's thread, and raises there if a collective fails or exceeds the group's timeout. The
    # worker reports this as PeerLost, so the first cause stays another worker's. By default a watchdog thread would
    # abort the process: Spark would report a crashed Python worker, perhaps before the first cause arrives.
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    # The watchdog leaves errors to ``wait()``. Collectives of user code with async_op=False have no ``wait()`` and no
    # timeout then: the driver ends their attempt by missing progress, see ``sparkdl.cluster.heartbeat``.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    # After a timeout torch's monitor thread would write its flight record, sleep for 8 minutes in which the group's
    # destructor waits for it, and then abort the process.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}


@dataclass(frozen=True)
class RendezvousSpec:
    """The arguments of a worker's rendezvous: an address that the others can dial, and fields of ``WorkerTask``."""

    rank: int
    size: int
    run: str
    attempt: int
    address: str
    timeout: float = 600.0
    device: str = "cpu"
    backend: str = "auto"
    gpus: tuple[str, ...] | None = None
    secret: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class RendezvousResult:
    """The result of a rendezvous: every worker's line, and rank 0's listening store (elsewhere None)."""

    lines: list[dict[str, Any]]
    store: Any


def meet(spec: RendezvousSpec, all_gather: AllGather) -> RendezvousResult:
    """Open the store on rank 0 and gather all workers' lines; calls ``all_gather`` exactly once, also on errors.

    Raises:
        PeerLost: another worker's line reports that it cannot take part.
    """
    line: dict[str, Any] = {"host": socket.gethostname(), "address": spec.address}
    store, trouble = None, None
    try:
        if spec.device == "cuda":
            line |= asdict(find_gpus(spec.gpus))
        if spec.rank == 0 and spec.size > 1:
            listening = listen(spec.address)
            line["port"] = listening.getsockname()[1]
            store = _store(spec, spec.address, line["port"], listening)
    except Exception as error:  # the others wait for this worker's line
        trouble, line["trouble"] = error, str(error)
    lines = [json.loads(text) for text in all_gather(json.dumps(line))]
    if trouble is not None:
        raise trouble
    for rank, line in enumerate(lines):
        if "trouble" in line:
            raise PeerLost(f"rank {rank} cannot join: {line['trouble']}")
    return RendezvousResult(lines, store)


@contextmanager
def join(spec: RendezvousSpec, rendezvous: RendezvousResult) -> Iterator[World]:
    """Yield the world with ``torch.distributed`` initialized; the block's end restores the process for reuse.

    Raises:
        InvalidInput: the workers' GPUs do not suffice, see ``sparkdl.cluster.group.devices``.
    """
    lines = rendezvous.lines
    local_rank = sum(line["host"] == lines[spec.rank]["host"] for line in lines[: spec.rank])
    choice = choose(lines, spec.rank, device=spec.device, backend=spec.backend)
    device = choice.device
    hosts = tuple(line["host"] for line in lines)
    world = World(
        spec.rank, spec.size, local_rank, device, spec.attempt, host=hosts[spec.rank], hosts=hosts, timeout=spec.timeout
    )
    world.addresses, world.secret = tuple(line["address"] for line in lines), spec.secret
    with _environment(_variables(spec, local_rank)):
        store = HashStore() if spec.size == 1 else rendezvous.store
        store = store or _store(spec, lines[0]["address"], lines[0]["port"], None)
        world.store = PrefixStore(f"{spec.run}/{spec.attempt}", store)
        try:
            if dist.is_initialized():  # an earlier task left its group behind in a reused Python worker
                dist.destroy_process_group()
            if device.type == "cuda":  # first: the group's own tensors are on the current GPU
                torch.cuda.set_device(device)
            with reaching_peers():
                dist.init_process_group(
                    choice.backend,
                    device_id=device if choice.backend == "nccl" else None,
                    store=PrefixStore("group", world.store),
                    rank=spec.rank,
                    world_size=spec.size,
                    timeout=datetime.timedelta(seconds=spec.timeout),
                )
            world.process_group = dist.group.WORLD
            with world.ends:
                yield world
        except BaseException:
            if choice.backend == "nccl" and dist.is_initialized():
                # A collective that waits for a failed worker would block the group's end as well.
                _abort_process_group()
            raise
        finally:
            world.store = None
            if not dist.is_initialized():
                # torch has counted the group that failed. The count names the next group, and workers of another count
                # would wait for it in vain; the end of any group resets it.
                dist.init_process_group(choice.backend, store=HashStore(), rank=0, world_size=1)
            dist.destroy_process_group()
            # Reference cycles would keep a model's memory in a reused process. A group's sockets close with its last
            # reference; until then a peer in a collective waits.
            gc.collect()
            if device.type == "cuda":  # torch keeps freed memory of the GPU, which the next fit's process may need
                torch.cuda.empty_cache()


def has_gloo() -> bool:
    """Whether torch was built with gloo, the backend of gangs on CPUs."""
    return dist.is_available() and dist.is_gloo_available()


def in_a_group() -> bool:
    """Whether ``torch.distributed`` is initialized in this process."""
    return dist.is_initialized()


def _store(spec: RendezvousSpec, host: str, port: int, listening: socket.socket | None) -> Any:
    timeout = datetime.timedelta(seconds=spec.timeout)
    with reaching_peers():
        if listening is None:
            return TCPStore(host, port, None, False, timeout=timeout)
        return TCPStore(
            host, port, None, True, timeout=timeout, wait_for_workers=False, master_listen_fd=listening.detach()
        )


def _variables(spec: RendezvousSpec, local_rank: int) -> dict[str, str]:
    variables = {"RANK": str(spec.rank), "WORLD_SIZE": str(spec.size), "LOCAL_RANK": str(local_rank)}
    interface = interface_of(spec.address)
    if interface is not None:
        # NCCL takes a plain name as a prefix: eth1 would match eth10 as well.
        variables |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    if spec.device == "cuda":
        if ":" in spec.address:  # NCCL prefers the interface's IPv4 address, which the others may not reach
            variables["NCCL_SOCKET_FAMILY"] = "AF_INET6"
        # A value that the user set stays, for example to debug.
        variables |= {name: os.environ.get(name, value) for name, value in _NCCL_ERRORS.items()}
    return variables


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    # An outer launcher's variables would misdirect user code that calls init_process_group().
    stale = ("MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID")
    before = {name: os.environ.get(name) for name in (*variables, *stale)}
    for name in stale:
        os.environ.pop(name, None)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
