"""The checkpoints of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sparkdl.checkpoint.store import Checkpoints
from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.ml.run import Run, differences, identity

IDENTITY = "checkpoints/identity"
"""The file of the descriptions in a run's directory, for ``Run.save``."""


def previous_workers(run: Run) -> int | None:
    """The workers, or shards, of the newest checkpoint in a run's directory; None without one."""
    return None if run.directory is None else _checkpoints(run, {}).world_size()


def _checkpoints(run: Run, descriptions: Mapping[str, Any]) -> Checkpoints:
    return Checkpoints(files.join(str(run.directory), "checkpoints"), run=identity(descriptions))


def own_checkpoints(run: Run, descriptions: Mapping[str, Any]) -> Checkpoints:
    """Open the checkpoints in a run's directory; raise ``InvalidInput`` with the differences if another run's."""
    checkpoints, before = _checkpoints(run, descriptions), run.load(IDENTITY)
    clauses = "; ".join(differences(before, descriptions)) if isinstance(before, dict) else ""
    try:
        checkpoints.attempts.check_owner()
        newest = checkpoints.latest(verify=False)
        if clauses and checkpoints.next_attempt():
            raise InvalidInput(f"{checkpoints.folder.path} belongs to the run of other callbacks; take another runDir.")
    except InvalidInput as error:
        raise InvalidInput(f"{error.message} These differ: {clauses}." if clauses else error.message) from error
    earlier = 0.0 if newest is None else newest[1].manifest.extra.get("seconds", 0.0)
    return replace(checkpoints, began=checkpoints.began - earlier)
