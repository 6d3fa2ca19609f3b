"""The recovery of a gang, from an estimator's Params."""

from __future__ import annotations

import tempfile
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.protocol import Cluster
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.ml.run import Run, differences, identity

IDENTITY = "checkpoints/identity"
"""The file of the descriptions in a run's directory, for ``Run.save``."""


@dataclass(frozen=True)
class RecoverySettings:
    """How a fit survives failures.

    Attributes:
        checkpoint_every: as the Param ``checkpointInterval``.
        max_restarts: times that a gang which failed starts again.
        min_workers: the smallest gang; None for all workers.
        elastic_timeout: seconds to wait for all slots before a smaller gang starts.
    """

    checkpoint_every: int | str
    max_restarts: int
    min_workers: int | None
    elastic_timeout: float


@contextmanager
def keeping(
    run: Run, every: int | str, descriptions: Mapping[str, Any], *, elastic: bool
) -> Iterator[Checkpointer | None]:
    """Yield the checkpointer of a run; None if the run has no checkpoints.

    Args:
        run: its directory holds the checkpoints. Without one, a temporary directory of this host holds them until the
            block ends. It serves the attempts of one fit if all workers are on this host.
        every: the checkpoint interval, as in ``checkpointInterval``; ``"never"`` for none.
        descriptions: of the run's Params; the checkpoints store their hash.
        elastic: whether fewer workers may resume.

    Raises:
        InvalidInput: the directory has the checkpoints of another run; the message lists the differences.
    """
    if every == "never":
        yield None
        return
    if run.directory is not None:
        yield Checkpointer(own_checkpoints(run, descriptions), CheckpointInterval.of(every), elastic=elastic)
        return
    with tempfile.TemporaryDirectory(prefix="sparkdl-", ignore_cleanup_errors=True) as folder:
        checkpoints, token = _checkpoints(folder, descriptions), uuid.uuid4().hex
        SharedDirectory(checkpoints.folder, token).announce()
        yield Checkpointer(checkpoints, CheckpointInterval.of(every), elastic=elastic, token=token)


def own_checkpoints(run: Run, descriptions: Mapping[str, Any]) -> Checkpoints:
    """Open the checkpoints in a run's directory and check that they belong to the run, before workers start.

    Raises:
        InvalidInput: they belong to another run; the message lists the differences.
    """
    checkpoints = _checkpoints(str(run.directory), descriptions)
    try:
        checkpoints.attempts.check_owner()
        checkpoints.latest(verify=False)
    except InvalidInput as error:
        before = run.load(IDENTITY)
        clauses = "; ".join(differences(before, descriptions)) if isinstance(before, dict) else ""
        raise InvalidInput(f"{error.message} These differ: {clauses}." if clauses else error.message) from error
    return checkpoints


def _checkpoints(directory: str, descriptions: Mapping[str, Any]) -> Checkpoints:
    return Checkpoints(files.join(directory, "checkpoints"), run=identity(descriptions))


def make_supervisor(cluster: Cluster, recovery: RecoverySettings, keeper: Checkpointer | None) -> Supervisor:
    """Make the supervisor of a run's attempts.

    Args:
        cluster: runs the attempts.
        recovery: the restarts, the smallest gang and the wait for slots.
        keeper: the checkpointer. Without one, a warning says that a smaller gang starts anew and cannot grow. If the
            run is asked to stop, it saves a checkpoint only if checkpoints outlive the fit.

    Raises:
        InvalidInput: ``minWorkers`` is larger than the cluster.
    """
    least = recovery.min_workers
    if least is not None and least > cluster.size:
        raise InvalidInput(f"minWorkers is {least}; expected at most numWorkers, which is {cluster.size}.")
    if least is not None and keeper is None:
        warnings.warn(
            f"minWorkers is {least}, but without checkpoints (checkpointInterval is 'never') each attempt begins anew, "
            "and a gang with fewer members than numWorkers stays as small as it is.",
            stacklevel=4,
        )
    return Supervisor(
        cluster,
        max_restarts=recovery.max_restarts,
        min_size=least,
        elastic_timeout=recovery.elastic_timeout,
        on_stop=None if keeper is None or keeper.temporary else keeper.checkpoints.ask_to_stop,
    )
