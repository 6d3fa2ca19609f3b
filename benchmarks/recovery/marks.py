"""The benchmark's own events of workers; a separate module keeps the executors' imports few."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.cluster.group.world import World
from sparkdl.data.fingerprint import Fingerprint
from sparkdl.telemetry.emit import record


class MarkedCheckpointer(Checkpointer):
    """Records when a worker begins to load a checkpoint, and when it has resumed."""

    def load(self, world: World, fingerprint: Fingerprint, live: Mapping[str, Any]) -> dict[str, Any] | None:
        record("joined")
        state = super().load(world, fingerprint, live)
        record("restored", clock=None, found=state is not None)
        return state


class FirstStep:
    """A callback that records the end of an attempt's first step."""

    every_rank = False

    def __init__(self) -> None:
        self._recorded = False

    def on_step(self, run: Any) -> None:
        if not self._recorded:
            record("first step", clock=run.clock)
        self._recorded = True
