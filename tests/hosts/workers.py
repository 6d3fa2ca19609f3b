"""What workers on several hosts do. Each new Python worker imports this, so it imports little."""

from __future__ import annotations

from typing import Any

import psutil
import torch

from sparkdl.cluster.group.world import World
from sparkdl.data.shard import Shard


def peers(world: World, shard: Shard | None) -> dict[str, Any]:
    """A worker's host and ranks, and the addresses of its connections after an all-reduce."""
    world.group().sum_(torch.ones(1 << 20))
    result = {"host": world.host, "rank": world.rank, "local_rank": world.local_rank, "connected": sorted(_connected())}
    world.all_gather_json("looked", {})  # a worker that leaves closes its peers' connections
    return result


def _connected() -> set[str]:
    sockets = psutil.Process().net_connections("tcp4")
    return {connection.raddr.ip for connection in sockets if connection.status == psutil.CONN_ESTABLISHED}
