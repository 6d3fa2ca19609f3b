"""A worker joins its gang. That it restores the process: tests/cluster/test_worker.py."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
import torch.distributed as dist

from sparkdl.cluster.group.rendezvous import RendezvousSpec, join, meet
from sparkdl.cluster.group.world import in_a_group

SPEC = RendezvousSpec(0, 1, "run", 3, "127.0.0.1")


def test_stale_group_is_replaced_and_keys_begin_with_run_and_attempt():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    stale, met = dist.group.WORLD, meet(SPEC, lambda line: [line])
    assert met.lines == [{"host": socket.gethostname(), "address": "127.0.0.1"}]
    with join(SPEC, met) as world:
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
