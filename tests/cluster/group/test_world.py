"""A worker joins its gang; collectives among workers, and errors that only report a lost peer."""

from __future__ import annotations

import datetime
import socket
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

from sparkdl.cluster.group.peers import is_peer_failure, reaching_peers
from sparkdl.cluster.group.rendezvous import RendezvousSpec, in_a_group, join, meet
from sparkdl.cluster.group.world import Group, World
from sparkdl.cluster.local import LocalCluster
from sparkdl.cluster.worker import WorkerTask
from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput, PeerLost, WorkerFailed

EVERY_DTYPE = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn),
)


def laid_out(factor: int) -> dict[str, torch.Tensor]:
    """The same numbers, times a factor, in several memory layouts."""
    return {
        "strided": (torch.arange(10.0) * factor)[::2],
        "columns": (torch.arange(12.0) * factor).view(3, 4)[:, 1:3],
        "transposed": (torch.arange(6.0) * factor).view(2, 3).t(),
        "channels last": (torch.arange(24.0) * factor).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "number": torch.tensor(7.0 * factor),
        "nothing": torch.empty(0, 3),
    }


def talk(world: World, shard: Shard | None) -> dict[str, Any]:
    group, number = world.group(), world.rank + 1
    averaged, broadcast, later = (torch.full((2,), float(number)) for _ in range(3))
    group.mean_(averaged)
    group.broadcast_(broadcast, source=2)
    group.sum_(later, wait=False).wait()
    own = torch.arange(6, dtype=torch.uint8).view(3, 2) + 10 * number
    gathered, received = torch.empty(3, 3, 2, dtype=torch.uint8), torch.empty_like(own)
    group.all_gather_into(gathered, own)
    for hosts in (("a", "b", "c"), ("a", "a", "b")):
        elsewhere, copies = replace(group, axis=replace(group.axis, hosts=hosts)), torch.empty_like(gathered)
        elsewhere.all_gather_into(copies, own, wait=False).wait()
        assert torch.equal(copies, gathered)
    part = torch.empty(2)
    group.reduce_scatter_into(part, torch.arange(6.0) * number)
    assert part.tolist() == [6.0 * (2 * world.rank), 6.0 * (2 * world.rank + 1)]
    group.all_to_all_into(received, own, wait=False).wait()
    dtypes = {str(dtype): torch.tensor([world.rank, 1]).to(dtype) for dtype in EVERY_DTYPE}
    spread, summed = laid_out(number), laid_out(number)
    for tensor in (*dtypes.values(), *spread.values()):
        group.broadcast_(tensor)
    for tensor in summed.values():
        group.sum_(tensor)
    return {
        "few": (averaged.tolist(), broadcast.tolist(), later.tolist()),
        "parts": (gathered.tolist(), received.tolist()),
        "gather": group.gather({"rank": world.rank, "tensor": torch.full((world.rank,), float(number))}),
        "json": [world.all_gather_json("first", {"rank": world.rank}), world.all_gather_json("second", {})],
        "dtypes": {name: tensor.float() for name, tensor in dtypes.items()},  # not all of them can be pickled
        "spread": spread,
        "summed": summed,
    }


@pytest.fixture(scope="module")
def three():
    with LocalCluster(3) as cluster:
        yield cluster


def test_collectives_of_any_dtype_and_layout(three):
    answers = three.gang(talk)
    for rank, answer in enumerate(answers):
        gathered = [[[ten, ten + 1], [ten + 2, ten + 3], [ten + 4, ten + 5]] for ten in (10, 20, 30)]
        assert answer["parts"] == (gathered, [parts[rank] for parts in gathered])
        assert answer["few"] == ([2.0, 2.0], [3.0, 3.0], [6.0, 6.0])
        assert [value["rank"] for value in answer["gather"]] == [0, 1, 2]
        assert [value["tensor"].tolist() for value in answer["gather"]] == [[], [2.0], [3.0, 3.0]]
        assert answer["json"] == [[{"rank": 0}, {"rank": 1}, {"rank": 2}], [{}, {}, {}]]
        for dtype in EVERY_DTYPE:
            assert torch.equal(answer["dtypes"][str(dtype)], torch.tensor([0.0, 1.0])), dtype
        for name, tensor in laid_out(1).items():
            assert torch.equal(answer["spread"][name], tensor), name
            assert torch.equal(answer["summed"][name], tensor * 6), name


def send_rows(world: World, shard: Shard | None) -> dict[str, Any]:
    """Rank r sends r + 2 i rows of ``r > 0`` to rank i, and none to itself."""
    sizes = [0 if to == world.rank else world.rank + 2 * to for to in range(world.size)]
    dtypes = {}
    for dtype in EVERY_DTYPE:
        parts = [torch.full((size, 2), world.rank > 0).to(dtype) for size in sizes]
        dtypes[str(dtype)] = [part.float().tolist() for part in world.group().all_to_all_rows(parts)]
    strided = torch.arange(12.0).view(3, 4).t() + 100 * world.rank
    columns = world.group().all_to_all_rows([strided[to:] for to in range(world.size)])
    scalars = world.group().all_to_all_rows([torch.arange(world.rank) for _ in range(world.size)])
    return {
        "dtypes": dtypes,
        "columns": [len(part) for part in columns],
        "scalars": [part.tolist() for part in scalars],
    }


def test_all_to_all_with_any_number_of_rows(three):
    for rank, answer in enumerate(three.gang(send_rows)):
        expected = [[[float(source > 0)] * 2] * (0 if source == rank else source + 2 * rank) for source in range(3)]
        assert all(parts == expected for parts in answer["dtypes"].values())
        assert answer["columns"] == [4 - rank] * 3
        assert answer["scalars"] == [[], [0], [0, 1]]


def swap(world: World, shard: Shard | None) -> dict[str, Any]:
    """Tensors of all neighbours in a ring, and of one neighbour."""
    group, size = world.group(), world.size
    around = sorted({(world.rank - 1) % size, (world.rank + 1) % size})
    dtypes = {str(dtype): torch.tensor([world.rank, 1]).to(dtype) for dtype in EVERY_DTYPE}
    received = {name: group.send_recv(tensor, around) for name, tensor in dtypes.items()}
    pair = {0: [1], 1: [0]}.get(world.rank, [])
    return {
        "around": around,
        "dtypes": {name: [each.float().tolist() for each in tensors] for name, tensors in received.items()},
        "laid out": [group.send_recv(tensor, pair) for tensor in laid_out(world.rank + 1).values()],
    }


def test_send_recv_with_some_workers(three):
    answers = three.gang(swap)
    for answer in answers:
        for name, received in answer["dtypes"].items():
            assert received == [[min(rank, 1) if "bool" in name else rank, 1] for rank in answer["around"]], name
    for rank, factor in ((0, 2), (1, 1)):
        for received, expected in zip(answers[rank]["laid out"], laid_out(factor).values(), strict=True):
            assert torch.equal(received[0], expected)
    assert answers[2]["laid out"] == [[]] * 6


def test_pending_sum_of_strided_tensor_raises():
    with pytest.raises(ValueError, match="contiguous"):
        Group(0, 3).sum_(torch.zeros(4)[::2], wait=False)


def test_group_of_one_sends_nothing():
    world, tensor = World(0, 1), torch.tensor([1.0, 2.0])
    group = world.group()
    copies = torch.zeros(1, 2), torch.zeros(2)
    group.all_gather_into(copies[0], tensor)
    group.all_to_all_into(copies[1], tensor)
    assert [copy.flatten().tolist() for copy in copies] == [[1.0, 2.0]] * 2
    group.reduce_scatter_into(copies[1].zero_(), tensor)
    assert copies[1].tolist() == [1.0, 2.0]
    group.sum_(tensor)
    group.mean_(tensor)
    group.broadcast_(tensor)
    assert tensor.tolist() == [1.0, 2.0]
    assert group.gather("alone") == ["alone"]
    assert world.all_gather_json("key", {"numbers": (1, 2)}) == [{"numbers": [1, 2]}]


@dataclass(frozen=True)
class Ends:
    """Registers two calls that write to a file, and may fail."""

    folder: str
    fails: bool = False

    def __call__(self, world: World, shard: Shard | None) -> tuple[bytes, tuple[str, ...]]:
        file = Path(self.folder, str(world.rank))
        for text in ("first", "second"):
            world.on_end(partial(append, file, text))
        if self.fails and world.rank == 1:
            raise LookupError("on purpose")
        axis = world.group().axis
        assert axis is not None
        assert axis.world is world
        world.group().sum_(torch.zeros(1))
        append(file, "work")
        return world.secret, world.addresses


def append(file: Path, text: str) -> None:
    with file.open("a", encoding="utf-8") as out:
        out.write(f"{text} ")


def test_workers_know_a_secret_of_their_attempt_and_the_addresses_of_all(three, tmp_path):
    answers = [three.gang(Ends(str(tmp_path))) for _ in range(2)]
    secrets = [{secret for secret, _ in answer} for answer in answers]
    assert [len(one) for one in secrets] == [1, 1]
    assert len(secrets[0] | secrets[1]) == 2
    assert {len(secret) for secret in secrets[0]} == {32}
    assert {addresses for _, addresses in answers[0]} == {("127.0.0.1",) * 3}
    task = WorkerTask(b"", 1, "run")
    assert repr(task.secret) not in repr(task)


@pytest.mark.parametrize("fails", [False, True])
def test_calls_run_in_reverse_order_when_the_gang_ends(three, tmp_path, fails):
    with pytest.raises(WorkerFailed, match="on purpose") if fails else nullcontext():
        three.gang(Ends(str(tmp_path), fails))
    for rank in range(3):
        assert (tmp_path / str(rank)).read_text().split() == ["work"] * (not fails) + ["second", "first"]


def run_block(world: World, error: Exception | None) -> None:
    with world.ends:
        if error is not None:
            raise error


def test_an_error_at_the_end_of_a_gang_never_hides_the_first_one(caplog):
    """It replaced the error of the work, and the launcher took it for the cause."""

    def fails() -> None:
        raise OSError("at the end")

    for error, expected in ((None, OSError), (LookupError("first"), LookupError)):
        world, ended = World(), []
        world.on_end(lambda ended=ended: ended.append(1))
        world.on_end(fails)
        with pytest.raises(expected):
            run_block(world, error)
        assert ended == [1]
    assert "failed, too" in caplog.text


def test_rank_0_keeps_the_store_open_until_all_have_read():
    store = HashStore()
    store.set_timeout(datetime.timedelta(seconds=0.05))
    zero, one = World(0, 2, store=store), World(1, 2, store=store)
    store.set("shards/1", "{}")  # rank 1 has sent its value, and has not read
    with pytest.raises(PeerLost):
        zero.all_gather_json("shards", {})
    assert one.all_gather_json("shards", {}) == zero.all_gather_json("shards", {}) == [{}, {}]


@pytest.mark.parametrize(
    ("error", "peer"),
    [
        (PeerLost("gone"), True),
        (dist.DistNetworkError("no route"), True),
        (dist.DistStoreError("no answer"), True),
        (RuntimeError("[/pytorch/gloo/transport/tcp/pair.cc:525] Connection closed by peer [127.0.0.1]:1"), True),
        (RuntimeError("[/pytorch/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 2000ms"), True),
        (RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"), True),
        (RuntimeError("Timed out waiting for the feature store"), False),
        (RuntimeError("CUDA out of memory"), False),
        (ValueError("Connection closed by peer"), False),
        (InvalidInput("no rows"), False),
    ],
)
def test_errors_that_only_report_a_lost_peer(error, peer):
    assert is_peer_failure(error) is peer
    with pytest.raises(PeerLost if peer else type(error)) as caught, reaching_peers():
        raise error
    assert str(error) in str(caught.value)


# ---- the rendezvous --------------------------------------------------------------------------------------------------


def test_stale_group_is_replaced_and_keys_begin_with_run_and_attempt():
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    stale, spec = dist.group.WORLD, RendezvousSpec(0, 1, "run", 3, "127.0.0.1")
    rendezvous = meet(spec, lambda line: [line])
    assert rendezvous.lines == [{"host": socket.gethostname(), "address": "127.0.0.1"}]
    with join(spec, rendezvous) as world:
        assert dist.group.WORLD is not stale
        world.store.set("key", "value")
        assert world.store.underlying_store.get("run/3/key") == b"value"
    assert not in_a_group()


FIRST_OPTIMIZER = """
import sys, torch
from sparkdl.cluster.inline import InlineCluster

InlineCluster().gang(lambda world, shard: torch.optim.SGD([torch.zeros(1, requires_grad=True)]) and None)
functions = vars(torch.distributed.nn.functional).values()
defaults = [value for function in functions for value in getattr(function, "__defaults__", None) or ()]
sys.exit(any(isinstance(value, torch.distributed.ProcessGroup) for value in defaults))
"""


@pytest.mark.slow
def test_first_optimizer_of_a_process_keeps_no_group():
    # It imports torch.distributed.nn, whose functions would keep the world's group, and its sockets, as a default.
    subprocess.run([sys.executable, "-c", FIRST_OPTIMIZER], check=True)
