"""Logs runs to MLflow: parameters, metrics, tags, artifacts and the model.

Each fit logs to a new run of MLflow, or to the active one, which stays active. A fit that resumes in its ``runDir``
logs to another run, with the earlier rows; both have the same tag ``sparkdl.runDir``. If the driver is killed, its run
stays RUNNING.

If the tracking server cannot be reached, ``fit`` raises before workers start. Later only the end of the fit waits for
it, as long as MLflow retries (``MLFLOW_HTTP_REQUEST_MAX_RETRIES``). The tracker uses its own client, and leaves
``mlflow.set_tracking_uri`` unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from sparkdl import __version__
from sparkdl.errors import InvalidInput
from sparkdl.io.redaction import public
from sparkdl.ml.tracking.mlflow_model import EXTRA
from sparkdl.ml.tracking.mlflow_run import ModelLogging, Place, TrackedRun
from sparkdl.ml.tracking.optional_imports import required
from sparkdl.ml.tracking.tracker import TrackerContext

_DEFAULT = "0"  # the id of every store's default experiment
_PARENT = "mlflow.parentRunId"


@dataclass(frozen=True)
class MLflow:
    """Logs runs to MLflow.

    Attributes:
        experiment: its name; created if missing. Default: the experiment of the active run, else of
            ``mlflow.set_experiment``.
        tracking_uri: of the server or store; default: MLflow's own when ``fit`` is called. Not in the ``repr``, as a
            URI may hold credentials.
        run_name: default: the estimator's class and the name of the run's directory. If a run is active, the fit
            logs to it, or, with a name, to a child run.
        tags: additional tags.
        log_model: whether to log the model.
        registered_model_name: register the model as a version of this one; default: none.
        code_paths: local files and folders with the model's code, logged with the model.

    Raises:
        InvalidInput: ``registered_model_name`` is set and ``log_model`` is false.
    """

    experiment: str | None = None
    tracking_uri: str | None = field(default=None, repr=False)
    run_name: str | None = None
    tags: Mapping[str, Any] | None = None
    log_model: bool = True
    registered_model_name: str | None = None
    code_paths: Sequence[str] = field(default=(), kw_only=True)
    on_driver: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.registered_model_name is not None and not self.log_model:
            raise InvalidInput(
                f"registered_model_name is {self.registered_model_name!r}, but log_model is False; MLflow registers "
                "only logged models."
            )

    def prepare(self, run: TrackerContext) -> TrackedRun:
        """Make the object that logs this run.

        Raises:
            InvalidInput: MLflow is not installed or cannot be reached, or the settings contradict the active run.
        """
        mlflow = required("mlflow", EXTRA)
        here = str(mlflow.get_tracking_uri())
        uri = here if self.tracking_uri is None else self.tracking_uri
        try:
            client = mlflow.MlflowClient(uri)
            active = mlflow.active_run() if uri == here else None
            place = self._new(client, default=uri == here) if active is None else self._beside(client, active.info)
        except InvalidInput:
            raise
        except Exception as error:  # any store's error
            told = f"{type(error).__name__}: {error}".replace(uri, public(uri))
            raise InvalidInput(
                f"MLflow does not answer at {public(uri)}: {told} Set tracking_uri, or call mlflow.set_tracking_uri, "
                "with the URI of a server or store."
            ) from error
        tags = {**place.tags, **self._tags(run)}
        if place.run_id is None:  # user, and notebook, job or commit
            tags = required("mlflow.tracking.context.registry", EXTRA).resolve_tags(tags)
        logging = ModelLogging(self.log_model, self.registered_model_name, self.code_paths)
        return TrackedRun(logging, client, replace(place, tags=tags), self.run_name or run.name)

    def _beside(self, client: Any, active: Any) -> Place:
        found = client.get_experiment(active.experiment_id)
        if self.experiment not in (None, found.name):
            raise InvalidInput(
                f"experiment is {self.experiment!r}, but the active run belongs to {found.name!r}; expected the same, "
                "none, or mlflow.end_run() before the fit."
            )
        if self.run_name is None:
            return Place(found.experiment_id, run_id=active.run_id)
        return Place(found.experiment_id, tags={_PARENT: active.run_id})

    def _new(self, client: Any, *, default: bool) -> Place:
        if self.experiment is None:
            # MLflow has no public function for its current experiment.
            fluent = required("mlflow.tracking.fluent", EXTRA)
            return Place(client.get_experiment(fluent._get_experiment_id() if default else _DEFAULT).experiment_id)
        found = client.get_experiment_by_name(self.experiment)
        if found is None:
            return Place(None, new_experiment=self.experiment)
        if found.lifecycle_stage != "active":
            raise InvalidInput(f"the experiment {self.experiment!r} is deleted; restore it, or choose another name.")
        return Place(found.experiment_id)

    def _tags(self, run: TrackerContext) -> dict[str, str]:
        own = {"sparkdl.version": __version__}
        if run.directory is not None:
            own["sparkdl.runDir"] = public(run.directory)
        return own | {name: str(value) for name, value in (self.tags or {}).items()}
