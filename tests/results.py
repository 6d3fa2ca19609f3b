"""What the workers of a gang return."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from sparkdl.io.merged_weights import merge_weights
from sparkdl.io.weights import read_state
from sparkdl.training.spec import TrainingResult


def merged(results: Sequence[TrainingResult]) -> dict[str, Tensor]:
    """The weights that the workers return together, by name."""
    return read_state(merge_weights([result.weights for result in results]))
