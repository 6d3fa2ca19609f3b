"""Gangs whose workers are on other hosts than this one, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkdl.cluster.group.world import World
from sparkdl.data.shard import Shard


@dataclass(frozen=True)
class OnHosts:
    """Work in a gang whose workers are on these hosts."""

    work: Callable[[World, Shard | None], Any]
    hosts: tuple[str, ...]

    def __call__(self, world: World, shard: Shard | None) -> Any:
        world.hosts = self.hosts
        return self.work(world, shard)
