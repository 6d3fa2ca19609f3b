"""What an estimator's Params say of recovery, as the rooms that do it understand it."""

from __future__ import annotations

import tempfile
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sparkdl.checkpoint.checkpointer import CheckpointKeeper
from sparkdl.checkpoint.interval import Every
from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.protocol import Cluster
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.ml.fit_spec import RecoverySettings
from sparkdl.ml.param_declaration import Scope
from sparkdl.ml.params import TrainingParams
from sparkdl.ml.run import identity


@contextmanager
def keeping(
    directory: str | None, every: int | str, configuration: Mapping[str, Any]
) -> Iterator[CheckpointKeeper | None]:
    """The keeper of a run's checkpoints; None where none are wanted.

    Args:
        directory: the run's directory. Without one they are in a temporary directory of this host until the block
            ends; they help the attempts of one fit, where all members are on this host.
        every: the distance between checkpoints, as in ``checkpointEvery``; ``"never"`` for none.
        configuration: the run's, whose identity its checkpoints have.

    Raises:
        InvalidInput: the directory has the checkpoints of another run.
    """
    if every == "never":
        yield None
        return
    elastic, run = configuration.get("minWorkers") is not None, run_identity(configuration)
    if directory is not None:
        checkpoints = Checkpoints(files.join(directory, "checkpoints"), run=run)
        checkpoints.latest(verify=False)  # another run's are refused before anything is launched
        yield CheckpointKeeper(checkpoints, Every.of(every), elastic=elastic)
        return
    with tempfile.TemporaryDirectory(prefix="sparkdl-", ignore_cleanup_errors=True) as folder:
        checkpoints, token = Checkpoints(files.join(folder, "checkpoints"), run=run), uuid.uuid4().hex
        SharedDirectory(checkpoints.folder, token).announce()
        yield CheckpointKeeper(checkpoints, Every.of(every), elastic=elastic, token=token)


def run_identity(configuration: Mapping[str, Any]) -> str:
    """The identity of a run by its Params; those outside ``Scope.RUN`` may change when it goes on."""
    return identity(configuration, TrainingParams.names_outside(Scope.RUN))


def make_supervisor(cluster: Cluster, recovery: RecoverySettings, keeper: CheckpointKeeper | None) -> Supervisor:
    """The supervisor of a run's attempts.

    Args:
        cluster: where they run.
        recovery: the restarts, the smallest gang and the wait for slots.
        keeper: who keeps checkpoints. Without one a warning says that fewer members begin anew, and do not become
            more. A run that is asked to stop is saved only where its checkpoints outlive it.

    Raises:
        InvalidInput: ``minWorkers`` is more than the cluster has.
    """
    least = recovery.min_workers
    if least is not None and least > cluster.size:
        raise InvalidInput(f"minWorkers is {least}; expected at most numWorkers, which is {cluster.size}.")
    if least is not None and keeper is None:
        warnings.warn(
            f"minWorkers is {least}, but without checkpoints (checkpointEvery is 'never') each attempt begins anew, "
            "and a gang with fewer members than numWorkers stays as small as it is.",
            stacklevel=4,
        )
    return Supervisor(
        cluster,
        max_restarts=recovery.max_restarts,
        min_size=least,
        elastic_wait=recovery.elastic_wait,
        on_stop=None if keeper is None or keeper.temporary else keeper.checkpoints.ask_to_stop,
    )
