"""Code of the user's own that is called while a gang trains.

A hook is an object with any of

    on_start(run)    before the first step, or the first one after those that an earlier attempt has done
    on_step(run)     after each optimizer step
    on_epoch(run)    after each epoch, its row of the history written
    on_end(run)      after the last epoch

A hook that is to be called on the driver, such as a tracker, says so: see ``sparkdl.ml.tracking.tracker``. Any other
travels to the members as a pickled copy: what it keeps, it keeps there. It is called on rank 0 alone, where it has
an attribute ``every_rank`` that is true on every member; only then may it call collectives. An error it raises ends
the run, as one of the model would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from sparkdl.errors import InvalidInput
from sparkdl.telemetry.clock import Clock

MOMENTS = ("on_start", "on_step", "on_epoch", "on_end")


@dataclass
class Snapshot:
    """What a hook is shown of its run: the real things, of the member it is called on.

    Attributes:
        rank: the member's rank.
        size: members of the gang.
        clock: epoch, step and samples so far.
        module: the module that is trained.
        device: where it lies.
        epochs: epochs asked for.
        steps: steps of an epoch.
        history: the rows of the epochs so far.
        loss: this member's mean loss since the epoch began; None before its first row.
    """

    rank: int
    size: int
    clock: Clock
    module: nn.Module
    device: torch.device
    epochs: int
    steps: int
    history: list[dict[str, Any]] = field(default_factory=list)
    loss: float | None = None


class Hooks:
    """The hooks that are called on this member.

    Args:
        hooks: the user's objects.
        rank: this member's rank.
    """

    def __init__(self, hooks: Sequence[Any], rank: int) -> None:
        called = [hook for hook in hooks if rank == 0 or getattr(hook, "every_rank", False)]
        self._called = {name: [getattr(hook, name) for hook in called if hasattr(hook, name)] for name in MOMENTS}

    def __contains__(self, moment: str) -> bool:
        """Whether anything is called at a moment, which may cost something to prepare."""
        return bool(self._called[moment])

    def call(self, moment: str, run: Snapshot) -> None:
        """Call every hook that has this moment, in the order in which they were given."""
        for method in self._called[moment]:
            method(run)


def check_hooks(hooks: Sequence[Any]) -> None:
    """Refuse what would never be called.

    Raises:
        InvalidInput: an object has none of the four methods.
    """
    for hook in hooks:
        if not any(callable(getattr(hook, name, None)) for name in MOMENTS):
            raise InvalidInput(
                f"hooks holds {hook!r}, which has none of the methods {', '.join(MOMENTS)}; expected one or more."
            )
