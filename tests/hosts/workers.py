"""What workers on several hosts do. Each new Python worker imports this, so it imports little."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import torch

from sparkdl.cluster.group.world import World
from sparkdl.data.shard import Shard


def peers(world: World, shard: Shard | None) -> dict[str, Any]:
    """A worker's host and ranks, and the addresses of its connections after an all-reduce."""
    world.group().sum_(torch.ones(1 << 20))
    found = {"host": world.host, "rank": world.rank, "local_rank": world.local_rank, "connected": sorted(_connected())}
    world.all_gather_json("looked", {})  # a worker that leaves closes its peers' connections
    return found


def _connected() -> set[str]:
    own = {path.readlink().name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    found = set()
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if f"socket:[{fields[9]}]" in own and fields[3] == "01":  # established
            found.add(socket.inet_ntoa(int(fields[2].partition(":")[0], 16).to_bytes(4, "little")))
    return found
