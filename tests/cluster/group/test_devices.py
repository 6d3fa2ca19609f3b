"""Every worker chooses its GPU and the backend from the same lines; no GPU is needed for that."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from sparkdl.cluster.group.devices import Gpus, choose, computing_on, find_gpus, free_memory, task_device
from sparkdl.cluster.group.rendezvous import RendezvousSpec, join, meet
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.net.addresses import interface_of

UUIDS = ["11111111-aaaa", "22222222-bbbb", "33333333-cccc", "44444444-dddd"]


@pytest.fixture
def fake(monkeypatch) -> list[Any]:
    """A host with four GPUs, on which nothing can run; the calls that set the current GPU, and free memory."""
    calls: list[Any] = []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=UUIDS[index]))
    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("freed"))
    return calls


# ---- addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("addresses", "visible", "index"),
    [
        (None, None, None),
        (["2"], None, 2),
        ([" 3 "], None, 3),
        (["1"], "7,5,6,4", 1),  # an index into the visible ones, whose physical numbers differ
        (["GPU-33333333-cccc"], None, 2),
        (["GPU-22222222-bbbb"], "GPU-44444444-dddd,GPU-22222222-bbbb", 1),
        (["MIG-slice"], "MIG-other,MIG-slice", 1),
    ],
)
def test_addresses_become_indices(fake, monkeypatch, addresses, visible, index):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert find_gpus(addresses) == Gpus(4, index, tuple(UUIDS))


def test_indices_count_by_the_bus_unless_only_some_gpus_are_visible(fake, monkeypatch):
    order = []
    for visible in (None, "0,1,2,3"):
        monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        find_gpus(["0"])
        order.append(os.environ.get("CUDA_DEVICE_ORDER"))
    assert order == ["PCI_BUS_ID", None]


def test_of_several_gpus_the_first_is_used_with_a_warning(fake):
    with pytest.warns(UserWarning, match="the task has 2 GPUs, 3, 1; a worker uses the first"):
        assert find_gpus(["3", "1"]).assigned == 3


@pytest.mark.parametrize(
    ("addresses", "message"),
    [
        ([""], "a GPU without an address.*discovery script"),
        ([], "a GPU without an address"),
        (["4"], "assigned the GPU '4', and the worker sees 4 GPUs, with CUDA_VISIBLE_DEVICES=unset"),
        (["GPU-55555555-eeee"], "assigned the GPU 'GPU-55555555-eeee'"),
    ],
)
def test_addresses_that_no_gpu_has_raise(fake, addresses, message):
    with pytest.raises(InvalidInput, match=message):
        find_gpus(addresses)


# ---- the choice ------------------------------------------------------------------------------------------------------


def lines(*places: tuple[str, int, int | None], first: Sequence[int] = ()) -> list[dict[str, Any]]:
    """``first`` has the host's number of the first GPU that each process sees; default: all see GPU 0 first."""
    return [
        {"host": host, **asdict(Gpus(visible, assigned, tuple(f"{begin + index}" for index in range(visible))))}
        for (host, visible, assigned), begin in zip(places, first or [0] * len(places), strict=True)
    ]


def cards(*places: tuple[str, int, int | None], backend: str = "auto") -> list[tuple[int | None, str]]:
    found = [choose(lines(*places), rank, device="cuda", backend=backend) for rank in range(len(places))]
    return [(choice.device.index, choice.backend) for choice in found]


def test_assignments_precede_local_ranks():
    assert cards(("a", 4, 3), ("a", 4, 0), ("b", 2, 1)) == [(3, "nccl"), (0, "nccl"), (1, "nccl")]
    hosts = [("a", 2, None), ("b", 2, None), ("a", 2, None), ("c", 8, 5)]
    for backend, chosen in (("auto", "nccl"), ("gloo", "gloo")):  # all workers of a gang have one backend
        assert cards(*hosts, backend=backend) == [(index, chosen) for index in (0, 0, 1, 5)]


def test_workers_on_cpus_use_gloo():
    for backend in ("auto", "gloo"):
        assert choose([{"host": "a"}], 0, device="cpu", backend=backend).backend == "gloo"
    with pytest.raises(InvalidInput, match="backend is 'nccl' and device is 'cpu'"):
        choose([{"host": "a"}], 0, device="cpu", backend="nccl")


def test_workers_share_a_gpu_only_with_gloo():
    for places in ([("a", 2, 1), ("b", 2, 1), ("a", 2, 1)], [("a", 1, None), ("b", 1, None), ("a", 1, None)]):
        shared = places[0][2] or 0
        with pytest.raises(InvalidInput, match=f"ranks 0, 2 share the GPU {shared} of a, which NCCL refuses"):
            cards(*places)
        assert cards(*places, backend="gloo") == [(shared, "gloo")] * 3


def test_processes_that_count_different_gpus_from_0_do_not_share_them():
    places = [("a", 1, 0), ("a", 1, 0)]
    assert choose(lines(*places, first=(0, 1)), 1, device="cuda").device.index == 0
    with pytest.raises(InvalidInput, match="ranks 0, 1 share the GPU 1 of a"):
        choose(lines(*places, first=(1, 1)), 1, device="cuda")


def test_a_task_computes_on_its_gpu(fake, monkeypatch):
    assert task_device("cpu") == torch.device("cpu")
    assert task_device("cuda", ["3"]) == torch.device("cuda", 3)
    assert task_device("cuda:2") == torch.device("cuda", 2)
    assert task_device("cuda") == task_device("cuda")
    monkeypatch.setattr(os, "getpid", lambda: 4 * 100 + 1)
    assert task_device("cuda") == torch.device("cuda", 1)
    assert [task_device("cuda", turn=rank).index for rank in range(5)] == [0, 1, 2, 3, 0]
    assert task_device("cuda", ["3"], turn=1).index == 3
    with pytest.raises(InvalidInput, match="device is 'cuda:4', and PyTorch sees 4 GPUs in this process"):
        task_device("cuda:4")


def test_memory_is_freed_after_a_task(fake, monkeypatch):
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    for device in ("cpu", "cuda:1", "cpu"):
        free_memory(torch.device(device))
    assert fake == ["freed"]


def test_a_device_without_enough_memory_is_named():
    full, other = (WorkerFailed("forward() raised an error") for _ in range(2))
    full.__cause__ = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
    expected = "the memory of cpu does not suffice: CUDA out of memory. Let a task take fewer rows"
    with pytest.raises(InvalidInput, match=expected), computing_on(torch.device("cpu")):
        raise full
    with pytest.raises(WorkerFailed, match="raised an error"), computing_on(torch.device("cpu")):
        raise other


def test_a_worker_without_a_gpu_raises_on_every_worker():
    places = [("a", 1, None), ("b", 0, None), ("c", 0, None)]
    for rank in range(3):
        with pytest.raises(InvalidInput, match="ranks 1, 2 on b, c see no GPU that PyTorch can use"):
            choose(lines(*places), rank, device="cuda")


# ---- the rendezvous --------------------------------------------------------------------------------------------------


def spec(**others: Any) -> RendezvousSpec:
    return RendezvousSpec(0, 1, "run", 0, "127.0.0.1", device="cuda", **others)


def test_the_gpu_is_current_before_the_group_exists_and_its_memory_is_freed_after(fake, monkeypatch):
    opened = dist.init_process_group
    monkeypatch.setattr(dist, "init_process_group", lambda *args, **more: fake.append(args[0]) or opened(*args, **more))
    one = spec(backend="gloo", gpus=("2",))
    with join(one, meet(one, lambda line: [line])) as world:
        assert world.device == torch.device("cuda", 2)
    assert fake == [torch.device("cuda", 2), "gloo", "freed"]


NCCL_VARIABLES = (
    *("TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_DUMP_ON_TIMEOUT"),
    *("NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY"),
)


def variables(one: RendezvousSpec) -> list[str | None]:
    """NCCL's variables inside the gang."""
    with join(one, meet(one, lambda line: [line])):
        return [os.environ.get(name) for name in NCCL_VARIABLES]


def test_a_failed_collective_of_nccl_raises_in_the_workers_thread(fake, monkeypatch):
    """By default torch's watchdog ends the process after a timeout, and the first cause is lost."""
    for name in NCCL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    interface = interface_of("127.0.0.1")
    assert variables(spec(backend="gloo")) == ["1", "0", "0", f"={interface}", None]
    assert not set(NCCL_VARIABLES) & set(os.environ)
    monkeypatch.setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")  # a user who debugs
    assert variables(spec(backend="gloo"))[:3] == ["1", "0", "1"]
    assert os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    monkeypatch.delenv("TORCH_NCCL_DUMP_ON_TIMEOUT")
    assert variables(RendezvousSpec(0, 1, "run", 0, "127.0.0.1"))[:3] == [None] * 3
    assert variables(replace(spec(backend="gloo"), address="2001:db8::1"))[3:] == [None, "AF_INET6"]


def test_an_error_of_the_assignment_reaches_the_other_workers(fake):
    sent: list[str] = []
    with pytest.raises(InvalidInput, match="the worker sees 4 GPUs"):
        meet(spec(gpus=("9",)), lambda line: sent.append(line) or [line])
    assert "the worker sees 4 GPUs" in sent[0]
