"""The connection to MLflow, and the experiment of new runs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sparkdl.errors import InvalidInput
from sparkdl.io.optional_imports import required
from sparkdl.io.redaction import masked, public

EXTRA = "mlflow"
REFUSED = re.compile(r"[^\w\-. :/]")
"""Characters that the names of metrics and parameters may not have."""

_DEFAULT = "0"  # the id of every store's default experiment


def connect(tracking_uri: str | None) -> tuple[Any, bool]:
    """MLflow's client of a store, and whether this is the current store; None means the current store."""
    mlflow = required("mlflow", EXTRA)
    current = str(mlflow.get_tracking_uri())
    uri = current if tracking_uri is None else tracking_uri
    with store_errors(uri):
        return mlflow.MlflowClient(uri), uri == current


@contextmanager
def store_errors(uri: str) -> Iterator[None]:
    """Convert the errors of a store in the block; raises ``InvalidInput`` if MLflow does not answer."""
    try:
        yield
    except InvalidInput:
        raise
    except Exception as error:  # any store's error
        reason = masked(f"{type(error).__name__}: {error}".replace(uri, public(uri)))
        raise InvalidInput(
            f"MLflow does not answer at {public(uri)}: {reason} Set tracking_uri, or call mlflow.set_tracking_uri, "
            "with the URI of a server or store."
        ) from error


def experiment_id(client: Any, name: str | None, *, default: bool) -> str | None:
    """The id of an experiment, without a name of MLflow's current one; None if it does not exist.

    ``default`` is whether the client's store is MLflow's current one. Raises ``InvalidInput`` for a deleted experiment.
    """
    if name is None:
        # MLflow has no public function for its current experiment.
        fluent = required("mlflow.tracking.fluent", EXTRA)
        return str(client.get_experiment(fluent._get_experiment_id() if default else _DEFAULT).experiment_id)
    experiment = client.get_experiment_by_name(name)
    if experiment is not None and experiment.lifecycle_stage != "active":
        raise InvalidInput(f"the experiment {name!r} is deleted; restore it, or choose another name.")
    return None if experiment is None else str(experiment.experiment_id)


def make_experiment(client: Any, name: str | None) -> str:
    """Create an experiment, unless another process has made it; return its id."""
    try:
        return str(client.create_experiment(name))
    except required("mlflow.exceptions", EXTRA).MlflowException:
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            raise
        return str(experiment.experiment_id)


def metrics_of(figures: Mapping[str, float], step: int) -> list[Any]:
    """MLflow's metrics of a step at the present time; "_" replaces refused characters of their names."""
    metric, now = required("mlflow.entities", EXTRA).Metric, int(time.time() * 1000)
    return [metric(REFUSED.sub("_", name), value, now, step) for name, value in figures.items()]
