"""A member joins its gang, and leaves the process as it was."""

from __future__ import annotations

import contextlib
import json
import os
import socket

import torch.distributed as dist

from sparkdl.cluster.group.network import Address
from sparkdl.cluster.group.rendezvous import RendezvousResult, RendezvousSpec, join, meet
from sparkdl.cluster.group.world import in_a_group

MEETING = RendezvousSpec(0, 1, "run", 3, Address("127.0.0.1"))


def alone(meeting: RendezvousSpec = MEETING) -> RendezvousResult:
    lines: list[str] = []

    def exchange(line: str) -> list[str]:
        lines.append(line)
        return [line]

    invitation = meet(meeting, exchange)
    assert len(lines) == 1
    assert json.loads(lines[0]) == {"host": socket.gethostname(), "address": "127.0.0.1"}
    return invitation


def test_the_process_is_set_back(monkeypatch):
    for name in ("WORLD_SIZE", "LOCAL_RANK", "GLOO_SOCKET_IFNAME", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "8")
    monkeypatch.setenv("MASTER_ADDR", "outer.invalid")
    before = dict(os.environ)
    for error in (None, ValueError("inside"), KeyboardInterrupt()):
        with contextlib.suppress(ValueError, KeyboardInterrupt), join(MEETING, alone()) as world:
            assert (world.rank, world.size, world.local_rank, world.attempt) == (0, 1, 0, 3)
            assert in_a_group()
            assert dist.get_world_size() == 1
            assert (os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"]) == ("0", "1", "0")
            assert "MASTER_ADDR" not in os.environ
            os.environ["MASTER_PORT"] = "5"
            if error is not None:
                raise error
        assert dict(os.environ) == before
        assert not in_a_group()
        assert world.store is None


def test_a_group_left_behind_by_others_is_replaced():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    left = dist.group.WORLD
    with join(MEETING, alone()):
        assert dist.group.WORLD is not left
    assert not in_a_group()


def test_keys_begin_with_run_and_attempt():
    with join(MEETING, alone()) as world:
        world.store.set("key", "value")
        underlying = world.store.underlying_store
        assert underlying.get("run/3/key") == b"value"
