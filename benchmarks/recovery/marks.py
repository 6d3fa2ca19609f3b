"""What members tell the driver besides; a module of its own, so that executors import nothing else with it."""

from __future__ import annotations

from typing import Any

from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.cluster.group.world import World
from sparkdl.telemetry.emit import record


class MarkedCheckpointer(Checkpointer):
    """Tells the driver when a member begins to look for a checkpoint, and when it has gone on from it."""

    def load(self, world: World, parts: list[str]) -> dict[str, Any] | None:
        """See ``Checkpointer.load``."""
        record("joined")
        state = super().load(world, parts)
        record("restored", clock=None, found=state is not None)
        return state


class FirstStep:
    """A callback that tells the driver when the first step of an attempt is over."""

    def __init__(self) -> None:
        self._told = False

    def on_step(self, run: Any) -> None:
        """After each step."""
        if not self._told:
            record("first step", clock=run.clock)
        self._told = True
