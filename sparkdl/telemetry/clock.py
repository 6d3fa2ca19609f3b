"""The only notion of progress.

A clock counts what the whole gang has done, never what one member has: every member's clock shows the same
numbers after the same step.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Clock:
    """How far a run has come.

    Attributes:
        epoch: completed epochs.
        step: completed optimizer steps.
        samples: rows used by all members together, over all epochs.
    """

    epoch: int = 0
    step: int = 0
    samples: int = 0

    def tick(self, rows: int) -> None:
        """Count one step that used ``rows`` rows over all members."""
        self.step += 1
        self.samples += rows

    def end_epoch(self) -> None:
        """Count one completed epoch."""
        self.epoch += 1

    def state_dict(self) -> dict[str, int]:
        """The clock as plain data."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Set the clock to a state that ``state_dict`` returned."""
        self.epoch, self.step, self.samples = state["epoch"], state["step"], state["samples"]
