"""The checkpoints of a run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sparkdl.checkpoint.manifest import MANIFEST, Manifest, Name
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.errors import CheckpointDamaged, InvalidInput
from sparkdl.io import files
from sparkdl.io.files import Folder
from sparkdl.ml.run import Run, differences, identity

IDENTITY = "checkpoints/identity"
"""The file of the descriptions in a run's directory, for ``Run.save``."""


def previous_workers(run: Run) -> int | None:
    """The workers, or shards, of the newest checkpoint in a run's directory; None without one."""
    if run.directory is None:
        return None
    folder = Folder.of(files.join(run.directory, "checkpoints"))
    for name in sorted(filter(None, map(Name.parse, folder.folders())), reverse=True):
        # Incomplete or damaged ones are for the run to report.
        with suppress(FileNotFoundError, CheckpointDamaged, InvalidInput):
            return Manifest.from_bytes(folder.read(f"{name}/{MANIFEST}")).world_size
    return None


def own_checkpoints(run: Run, descriptions: Mapping[str, Any]) -> Checkpoints:
    """Open the checkpoints in a run's directory; raise ``InvalidInput`` with the differences if another run's."""
    checkpoints = Checkpoints(files.join(str(run.directory), "checkpoints"), run=identity(descriptions))
    try:
        checkpoints.attempts.check_owner()
        checkpoints.latest(verify=False)
    except InvalidInput as error:
        before = run.load(IDENTITY)
        clauses = "; ".join(differences(before, descriptions)) if isinstance(before, dict) else ""
        raise InvalidInput(f"{error.message} These differ: {clauses}." if clauses else error.message) from error
    return checkpoints
