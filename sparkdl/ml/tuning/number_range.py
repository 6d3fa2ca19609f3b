"""A range of numbers in a search space."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields


@dataclass(frozen=True)
class Range(CheckedFields):
    """Numbers from ``low`` to ``high``, both included.

    With a whole ``low`` and a whole ``step`` the numbers are whole, else floats.

    Attributes:
        low: the least number.
        high: the largest number.
        log: whether the logarithm is drawn evenly; then ``low`` is above 0, and a step is 1.
        step: the distance of two numbers; default: any number in between.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def _check(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise InvalidInput(
                f"{self} has low={self.low} and high={self.high}; expected finite numbers, low below high."
            )
        if self.log and self.low <= 0:
            raise InvalidInput(f"{self} has log=True and low={self.low}; expected a number above 0.")
        if self.step is not None and not 0 < self.step <= self.high - self.low:
            raise InvalidInput(f"{self} has step={self.step}; expected a number above 0, at most high - low.")
        if self.log and self.step is not None and not (self.whole and self.step == 1):
            raise InvalidInput(
                f"{self} has log=True and step={self.step}; expected step=1 and whole numbers, or no step."
            )

    @property
    def whole(self) -> bool:
        """Whether the numbers are whole."""
        return isinstance(self.low, int) and isinstance(self.step, int)

    @property
    def count(self) -> int:
        """How many numbers a range with a step has; raises InvalidInput without one."""
        if self.step is None:
            raise InvalidInput(f"{self} has no step, and a grid has all its combinations; expected a step, or a list.")
        return int((self.high - self.low) / self.step * (1 + 1e-12)) + 1
