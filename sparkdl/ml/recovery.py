"""What an estimator's Params say of recovery, as the rooms that do it understand it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from sparkdl import files
from sparkdl.checkpoint import Checkpoints
from sparkdl.cluster import Cluster
from sparkdl.errors import InvalidInput
from sparkdl.keeper import CheckpointKeeper, Every
from sparkdl.ml.run_params import RunParams
from sparkdl.run import identity
from sparkdl.supervisor import Supervisor


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
    return CheckpointKeeper(checkpoints, Every.of(every), elastic=configuration.get("minWorkers") is not None)


def make_supervisor(cluster: Cluster, params: RunParams, keeper: CheckpointKeeper | None) -> Supervisor:
    """The supervisor of a run's attempts.

    Args:
        cluster: where they run.
        params: ``maxRestarts``, ``minWorkers`` and ``elasticWait``.
        keeper: who keeps checkpoints. Without one a warning says that fewer members begin anew, and do not become
            more; and a run that is asked to stop is not saved.

    Raises:
        InvalidInput: ``minWorkers`` is more than the cluster has.
    """
    least = params.getMinWorkers()
    if least is not None and least > cluster.size:
        raise InvalidInput(f"minWorkers is {least}; expected at most numWorkers, which is {cluster.size}.")
    if least is not None and keeper is None:
        warnings.warn(
            f"minWorkers is {least}, but without checkpoints (runDir and checkpointEvery) each attempt begins anew, "
            "and a gang with fewer members than numWorkers stays as small as it is.",
            stacklevel=4,
        )
    return Supervisor(
        cluster,
        max_restarts=params.getMaxRestarts(),
        min_size=least,
        elastic_wait=params.getElasticWait(),
        on_stop=None if keeper is None else keeper.checkpoints.ask_to_stop,
    )
