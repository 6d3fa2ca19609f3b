"""What an estimator's Params say of recovery, as the rooms that do it understand it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from sparkdl import files
from sparkdl.checkpoint import Checkpoints
from sparkdl.keeper import CheckpointKeeper, Every
from sparkdl.run import identity


def make_keeper(
    directory: str | None, every: int | str | None, configuration: Mapping[str, Any]
) -> CheckpointKeeper | None:
    """The keeper of a run's checkpoints; None where none are wanted.

    Args:
        directory: the run's directory; without one a warning says that there will be no checkpoints.
        every: the distance between checkpoints, as in ``checkpointEvery``; None for none.
        configuration: the run's, whose identity its checkpoints have.

    Raises:
        InvalidInput: the directory has the checkpoints of another run.
    """
    if every is None:
        return None
    if directory is None:
        warnings.warn(
            f"checkpointEvery is {every!r}, but there is no runDir to keep checkpoints in: it is ignored.", stacklevel=4
        )
        return None
    checkpoints = Checkpoints(files.join(directory, "checkpoints"), run=identity(configuration))
    checkpoints.latest(verify=False)  # another run's are refused before anything is launched
    return CheckpointKeeper(checkpoints, Every.of(every))
