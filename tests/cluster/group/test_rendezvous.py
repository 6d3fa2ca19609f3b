"""A worker joins its gang, and restores the process."""

from __future__ import annotations

import contextlib
import json
import os
import socket

import torch.distributed as dist

from sparkdl.cluster.group.network import Address
from sparkdl.cluster.group.rendezvous import RendezvousSpec, join, meet
from sparkdl.cluster.group.world import in_a_group

SPEC = RendezvousSpec(0, 1, "run", 3, Address("127.0.0.1"))


def alone():
    lines: list[str] = []
    found = join(SPEC, meet(SPEC, lambda line: lines.append(line) or lines))  # type: ignore[func-returns-value]
    assert [json.loads(line) for line in lines] == [{"host": socket.gethostname(), "address": "127.0.0.1"}]
    return found


def test_process_is_restored(monkeypatch):
    for name in ("WORLD_SIZE", "LOCAL_RANK", "GLOO_SOCKET_IFNAME", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "8")
    monkeypatch.setenv("MASTER_ADDR", "outer.invalid")
    before = dict(os.environ)
    for error in (None, ValueError("inside"), KeyboardInterrupt()):
        with contextlib.suppress(ValueError, KeyboardInterrupt), alone() as world:
            assert (world.rank, world.size, world.local_rank, world.attempt) == (0, 1, 0, 3)
            assert in_a_group()
            assert (os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"]) == ("0", "1", "0")
            assert "MASTER_ADDR" not in os.environ
            os.environ["MASTER_PORT"] = "5"
            if error is not None:
                raise error
        assert dict(os.environ) == before
        assert not in_a_group()
        assert world.store is None


def test_stale_group_is_replaced_and_keys_begin_with_run_and_attempt():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    stale = dist.group.WORLD
    with alone() as world:
        assert dist.group.WORLD is not stale
        world.store.set("key", "value")
        assert world.store.underlying_store.get("run/3/key") == b"value"
    assert not in_a_group()
