"""Which GPU a worker uses, and by which backend the gang exchanges gradients.

Before the workers meet, each one describes its GPUs in its line. Then all choose from the same lines, so all agree, or
all raise the same error. A worker uses the GPU that the cluster assigned to it; else the GPU of its local rank among
the host's workers without an assignment. NCCL refuses two workers on one GPU; gloo allows it.

An address is an index into the visible GPUs, as in a host's ``CUDA_VISIBLE_DEVICES``, or the UUID of a GPU.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from sparkdl.errors import InvalidInput

BACKENDS = ("auto", "nccl", "gloo")


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a worker.

    Attributes:
        visible: the number of GPUs that torch sees in this process.
        assigned: the index of the GPU that the cluster assigned; None if it assigned none.
        uuids: of the visible GPUs: processes of one host may count different GPUs from 0.
    """

    visible: int
    assigned: int | None = None
    uuids: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeviceChoice:
    """A worker's device, and the backend of its gang."""

    device: torch.device
    backend: str


def find_gpus(addresses: Sequence[str] | None) -> Gpus:
    """The GPUs of this process, of which the cluster assigned those with ``addresses``; None if it assigns none.

    This initialises CUDA. Of several addresses the worker uses the first, with a warning.

    Raises:
        InvalidInput: the cluster assigned a GPU without an address, or one that this process does not see.
    """
    if addresses is not None and "CUDA_VISIBLE_DEVICES" not in os.environ:
        # nvidia-smi, and so discovery scripts, count GPUs in this order, and CUDA by default the fastest first.
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    visible = torch.cuda.device_count()
    uuids = tuple(str(torch.cuda.get_device_properties(index).uuid) for index in range(visible))
    if addresses is None:
        return Gpus(visible, None, uuids)
    if not addresses or not addresses[0].strip():
        raise InvalidInput(
            f"the cluster assigned a GPU without an address: {list(addresses)}. Expected addresses from its discovery "
            "script, such as conf/spark/find_gpus.sh."
        )
    if len(addresses) > 1:
        warnings.warn(
            f"the task has {len(addresses)} GPUs, {', '.join(addresses)}; a worker uses the first. Request one GPU for "
            "each task, and more workers.",
            stacklevel=2,
        )
    return Gpus(visible, _index(addresses[0].strip(), uuids), uuids)


def _index(address: str, uuids: Sequence[str]) -> int:
    only, uuid = os.environ.get("CUDA_VISIBLE_DEVICES", ""), address.removeprefix("GPU-")
    if address.isdecimal() and int(address) < len(uuids):
        return int(address)
    if not address.isdecimal() and address in (listed := only.split(",")):
        return listed.index(address)
    if uuid in uuids:
        return uuids.index(uuid)
    raise InvalidInput(
        f"the cluster assigned the GPU {address!r}, and the worker sees {len(uuids)} GPUs, with CUDA_VISIBLE_DEVICES="
        f"{only or 'unset'}. Expected an index into these GPUs, or a UUID."
    )


def choose(lines: Sequence[Mapping[str, Any]], rank: int, *, device: str, backend: str = "auto") -> DeviceChoice:
    """Choose a worker's device from all workers' lines.

    Args:
        lines: by rank: ``host``, and for ``device="cuda"`` the fields of ``Gpus``.
        rank: the worker's rank.
        device: ``"cpu"`` or ``"cuda"``.
        backend: ``"nccl"``, ``"gloo"``, or ``"auto"`` for NCCL on GPUs and gloo on CPUs.

    Raises:
        InvalidInput: a worker has no GPU, workers share one under NCCL, or NCCL is to run on CPUs.
    """
    if device == "cpu":
        if backend == "nccl":
            raise InvalidInput("backend is 'nccl' and device is 'cpu'; NCCL needs GPUs: set device='cuda'.")
        return DeviceChoice(torch.device("cpu"), "gloo")
    backend = "nccl" if backend == "auto" else backend
    if without := [at for at, line in enumerate(lines) if not line["visible"]]:
        raise InvalidInput(
            f"device is 'cuda', and {_workers(lines, without)} no GPU that PyTorch can use. Give every worker a GPU, "
            "or set device='cpu'."
        )
    cards = [_card(lines, at) for at in range(len(lines))]
    places = [(line["host"], line["uuids"][card]) for line, card in zip(lines, cards, strict=True)]
    shared = [at for at, place in enumerate(places) if places.count(place) > 1]
    if shared and backend == "nccl":
        first = places[shared[0]]
        ranks = [at for at in shared if places[at] == first]
        raise InvalidInput(
            f"ranks {_listed(ranks)} share the GPU {first[1]} of {first[0]}, which NCCL refuses. Request one GPU for "
            "each task (taskGpus=1), lower numWorkers, or set backend='gloo'."
        )
    return DeviceChoice(torch.device("cuda", cards[rank]), backend)


def task_device(device: str, addresses: Sequence[str] | None = None, *, turn: int | None = None) -> torch.device:
    """The device on which a task computes alone, without a gang; several tasks may share a GPU.

    Args:
        device: ``"cpu"``, ``"cuda"`` or a certain GPU, such as ``"cuda:1"``.
        addresses: as for ``find_gpus``. Without them, tasks take turns on the visible GPUs.
        turn: the number of the task, such as its partition's; default: the process ID.

    Raises:
        InvalidInput: this process sees no GPU, or not this one.
    """
    chosen = torch.device(device)
    if chosen.type == "cpu":
        return chosen
    gpus = find_gpus(addresses)
    if chosen.index is not None and chosen.index < gpus.visible:
        return chosen
    if not gpus.visible or chosen.index is not None:
        raise InvalidInput(
            f"device is {device!r}, and PyTorch sees {gpus.visible} GPUs in this process. Run tasks where there are "
            "GPUs, or set device='cpu'; a fitted model takes model.setDevice('cpu')."
        )
    turn = os.getpid() if turn is None else turn
    return torch.device("cuda", turn % gpus.visible if gpus.assigned is None else gpus.assigned)


@contextmanager
def computing_on(device: torch.device) -> Iterator[None]:
    """Make a GPU the current one while a task computes on it.

    Raises:
        InvalidInput: the device's memory does not suffice.
    """
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            yield
    except Exception as error:
        if (cause := _out_of_memory(error)) is None:
            raise
        raise InvalidInput(
            f"the memory of {device} does not suffice: {str(cause).partition('. ')[0]}. Let a task take fewer rows at "
            "a time: lower the batch size, or use more shards (numWorkers). If tasks share a GPU, set taskGpus=1."
        ) from error


def free_memory(device: torch.device) -> None:
    """Return a GPU's unused memory after a task, since its process lives on and other processes may need it."""
    if device.type == "cuda":
        if torch.cuda.memory_allocated(device):
            gc.collect()  # of a model in a reference cycle; a full collection takes as long as a short task
        torch.cuda.empty_cache()


def _out_of_memory(error: BaseException | None) -> torch.OutOfMemoryError | None:
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__cause__ or error.__context__
    return error


def _card(lines: Sequence[Mapping[str, Any]], rank: int) -> int:
    line = lines[rank]
    if line["assigned"] is not None:
        return int(line["assigned"])
    before = sum(one["host"] == line["host"] and one["assigned"] is None for one in lines[:rank])
    return int(before % line["visible"])


def _workers(lines: Sequence[Mapping[str, Any]], ranks: Sequence[int]) -> str:
    hosts = ", ".join(dict.fromkeys(str(lines[rank]["host"]) for rank in ranks))
    return f"rank{'s' * (len(ranks) > 1)} {_listed(ranks)} on {hosts} see{'s' * (len(ranks) == 1)}"


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:20])) + f" and {len(ranks) - 20} more" * (len(ranks) > 20)
