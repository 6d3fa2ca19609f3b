"""Groups along axes: which ranks form them, and collectives in them."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import Any

import psutil
import pytest
import torch

from sparkdl.cluster.group import mesh
from sparkdl.cluster.group.rendezvous import RendezvousResult, RendezvousSpec, join, meet
from sparkdl.cluster.group.world import Axis, Group, World
from sparkdl.cluster.local import LocalCluster
from sparkdl.errors import InvalidInput, WorkerFailed

UNEVEN = ("a", "b", "a", "c", "b", "a")


@pytest.fixture(scope="module")
def four():
    with LocalCluster(4) as cluster:
        yield cluster


# ---- which ranks form which group ------------------------------------------------------------------------------------


def test_grid_numbers_workers_row_by_row():
    assert mesh.grid({"replica": 2, "shard": 1, "stage": 2, "tensor": 2}, 8) == {
        "replica": [(0, 4), (1, 5), (2, 6), (3, 7)],
        "shard": [(rank,) for rank in range(8)],
        "stage": [(0, 2), (1, 3), (4, 6), (5, 7)],
        "tensor": [(0, 1), (2, 3), (4, 5), (6, 7)],
    }
    assert mesh.grid({"replica": 3}, 3) == {"replica": [(0, 1, 2)]}


@pytest.mark.parametrize("sizes", [{"replica": 2, "shard": 2}, {"replica": 0}, {"shard": -6}, {}])
def test_grid_of_other_workers_raises(sizes):
    with pytest.raises(InvalidInput, match=r"the gang has 6\. Set sizes of at least 1 that multiply to numWorkers"):
        mesh.grid(sizes, 6)


def test_hosts_with_uneven_numbers_of_workers_and_interleaved_ranks():
    groups = mesh.by_host(UNEVEN)
    assert groups == [(0, 2, 5), (1, 4), (3,)]
    assert mesh.leaders(groups) == [(0, 1, 3)]
    assert mesh.by_host(()) == []


def test_consecutive_workers():
    assert mesh.consecutive(UNEVEN, 4) == [(0, 1, 2, 3), (4, 5)]
    assert mesh.consecutive(UNEVEN, 1) == [(rank,) for rank in range(6)]
    assert mesh.consecutive(UNEVEN, 9) == [tuple(range(6))]


def test_dividing_an_axis_divides_each_of_its_groups():
    axis = Axis(((0, 1, 2), (3, 4, 5)), UNEVEN, 1.0)
    assert mesh.divide(axis, mesh.by_host).groups == ((0, 2), (1,), (3,), (4,), (5,))
    assert mesh.divide(axis, partial(mesh.consecutive, size=2)).groups == ((0, 1), (2,), (3, 4), (5,))


def test_world_of_one_has_groups_of_one():
    world = World(0, 1)
    mesh.open_axes(world, mesh.grid({"replica": 1, "shard": 1}, 1))
    assert world.axes == {"data": 1, "replica": 1, "shard": 1}
    group = mesh.split(world.group("shard"), mesh.by_host)
    assert (group.size, group.handle, group.hosts) == (1, None, (world.host,))
    with pytest.raises(ValueError, match="the axis 'shard' is open with other groups"):
        mesh.open_axes(world, {"shard": []})
    with pytest.raises(ValueError, match="the axis 'data' is open with other groups"):
        mesh.open_axes(world, {"data": [(0,)]})
    with pytest.raises(ValueError, match=r"only a group of World.group\(\)"):
        mesh.split(Group(0, 2), mesh.by_host)
    with pytest.raises(ValueError, match="no axis 'tensor'; this world has data, replica, shard"):
        world.group("tensor")


# ---- collectives in groups -------------------------------------------------------------------------------------------


def number(world: World, factor: int = 1) -> torch.Tensor:
    return torch.full((2,), float(world.rank * factor))


def talk(world: World, shard: Any) -> dict[str, Any]:
    before = groups()
    for _ in range(2):  # the second call connects nothing
        mesh.open_axes(world, mesh.grid({"replica": 2, "shard": 2}, world.size))
    opened = groups() - before
    replica, along = world.group("replica"), world.group("shard")
    summed, to_last, averaged, received, later = (number(world) for _ in range(5))
    along.sum_(summed)
    along.sum_(to_last, to=1)
    replica.mean_(averaged)
    replica.broadcast_(received, source=1)
    along.broadcast_(later, wait=False).wait()
    alone = world.group("replica").size if world.rank == 0 else None  # a worker may ask alone
    return {
        "ranks": (replica.rank, along.rank, replica.ranks, along.ranks),
        "summed": summed[0].item(),
        "to last": to_last[0].item() if along.rank == 1 else None,
        "averaged": averaged[0].item(),
        "received": (received[0].item(), later[0].item()),
        "gathered": replica.gather({"rank": world.rank, "more": "x" * 100 * world.rank}),
        "groups": (before, opened, alone),
    }


def groups() -> int:
    return len(torch.distributed.distributed_c10d._world.pg_map)


@pytest.mark.slow
def test_collectives_along_axes(four):
    answers = four.gang(talk)
    for rank, answer in enumerate(answers):
        row, column = divmod(rank, 2)
        assert answer["ranks"] == (row, column, (column, column + 2), (2 * row, 2 * row + 1))
        assert answer["summed"] == 4 * row + 1
        assert answer["to last"] == (4 * row + 1 if column else None)
        assert answer["averaged"] == column + 1
        assert answer["received"] == (column + 2, 2 * row)
        assert [value["rank"] for value in answer["gathered"]] == [column, column + 2]
        assert [len(value["more"]) for value in answer["gathered"]] == [100 * column, 100 * column + 200]
        assert answer["groups"] == (1, 2, 2 if rank == 0 else None)  # a gang without axes has one group


def by_hosts(world: World, shard: Any) -> list[Any]:
    world.hosts = ("a", "b", "a", "a")
    host = mesh.split(world.group(), mesh.by_host)
    first = mesh.split(world.group(), lambda hosts: mesh.leaders(mesh.by_host(hosts)))
    total, among = number(world, 1), number(world, 10)
    host.sum_(total)
    first.sum_(among)
    return [host.ranks, host.hosts, total[0].item(), first.ranks, among[0].item()]


def test_workers_of_hosts_and_their_leaders(four):
    a, b = ((0, 2, 3), ("a",) * 3, 5.0), ((1,), ("b",), 1.0)
    assert four.gang(by_hosts) == [
        [*a, (0, 1), 10.0],
        [*b, (0, 1), 10.0],
        [*a, (2,), 20.0],
        [*a, (3,), 30.0],
    ]


def fails_in_a_subgroup(world: World, shard: Any) -> None:
    pair = mesh.split(world.group(), partial(mesh.consecutive, size=2))
    other = mesh.split(world.group(), lambda hosts: [(0, 2), (1, 3)])
    if world.rank == 1:
        raise ArithmeticError("stumbled")
    pair.sum_(torch.zeros(1))
    other.sum_(torch.zeros(1))  # ranks 2 and 3 have no group with rank 1


def test_failure_of_one_worker_ends_collectives_of_all_subgroups(four):
    with pytest.raises(WorkerFailed, match="ArithmeticError: stumbled") as caught:
        four.gang(fails_in_a_subgroup)
    assert caught.value.rank == 1


def sockets() -> int:
    return len(psutil.Process().net_connections())


def join_again(world: World, shard: Any) -> list[Any]:
    """Join a second gang in this process, on other hosts, twice: its sockets and groups end with it."""

    def all_gather(line: str) -> list[str]:
        return [answer["line"] for answer in world.all_gather_json(f"line {attempt}", {"line": line})]

    counts, hosts = [(sockets(), True)], []
    for attempt in range(2):
        spec = RendezvousSpec(world.rank, world.size, "again", attempt, "127.0.0.1", 60.0)
        lines = meet(spec, all_gather)
        for rank, line in enumerate(lines.lines):
            line["host"] = "ab"[rank % 2]
        with join(spec, RendezvousResult(lines.lines, lines.store)) as inner:
            mesh.open_axes(inner, {"host": mesh.by_host(inner.hosts)} | mesh.grid({"replica": 2, "shard": 2}, 4))
            hosts.append((inner.group("host").hosts, inner.local_rank))
            inner.group("host").sum_(torch.zeros(1))
            handle = weakref.ref(inner.group("host").handle)
        inner.release()
        del lines, inner
        gc.collect()
        counts.append((sockets(), handle() is None))
    return [counts, hosts]


def test_subgroups_and_their_sockets_end_with_the_gang(four):
    for rank, (counts, hosts) in enumerate(four.gang(join_again)):
        assert all(freed for _, freed in counts)
        before, *after = (count for count, _ in counts)
        assert max(after) <= before
        assert hosts == [(("ab"[rank % 2],) * 2, rank // 2)] * 2
