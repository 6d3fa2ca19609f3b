"""A run in MLflow: parameters, metrics, tags, artifacts and the model.

Each fit is a run of MLflow, or the one that is active where ``fit`` is called, which goes on afterwards. A fit that
goes on in its ``runDir`` is another run, with the earlier rows as well; the tag ``sparkdl.runDir`` is what they share.
A driver that is killed leaves its run as RUNNING.

Where the tracking server cannot be reached, a fit is refused before anything is launched. Later on nothing waits for it
but the end of the fit, for as long as MLflow itself tries again (``MLFLOW_HTTP_REQUEST_MAX_RETRIES``). All goes by way
of a client with an address of its own: what ``mlflow.set_tracking_uri`` has set is neither turned nor asked twice.
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
from sparkdl.ml.tracking.tracker import DriverRun

_DEFAULT = "0"  # the id of the experiment that every store has
_PARENT = "mlflow.parentRunId"


@dataclass(frozen=True)
class MLflow:
    """Writes runs to MLflow.

    Attributes:
        experiment: its name; made if it is not there. Default: that of the active run, else the one that
            ``mlflow.set_experiment`` has set.
        tracking_uri: of the server or store; default: as ``mlflow`` has it when ``fit`` is called. Not shown, for a
            URI may hold credentials.
        run_name: default: the estimator's class and the name of the run's directory. With a run that is active, the
            fit is a run of this name below it, not that run itself.
        tags: more of them.
        log_model: whether the model is logged.
        registered_model_name: the registered model that it becomes a version of; default none.
        code_paths: local files and folders with the model's own code, which go with the model.

    Raises:
        InvalidInput: a model is to be registered and not to be logged.
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
                f"registered_model_name is {self.registered_model_name!r} and log_model is False; expected a model "
                "that is logged, for only that can be registered."
            )

    def prepare(self, run: DriverRun) -> TrackedRun:
        """What writes this run.

        Raises:
            InvalidInput: MLflow is not installed, cannot be reached, or the settings contradict the active run.
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
        except Exception as error:  # of whichever store it is
            told = f"{type(error).__name__}: {error}".replace(uri, public(uri))
            raise InvalidInput(
                f"MLflow cannot be used at {public(uri)}: {told} Expected the URI of a server or store that can "
                "be reached, as tracking_uri or by mlflow.set_tracking_uri."
            ) from error
        tags = {**place.tags, **self._tags(run)}
        if place.run_id is None:  # who began it, from which notebook, job or commit
            tags = required("mlflow.tracking.context.registry", EXTRA).resolve_tags(tags)
        logging = ModelLogging(self.log_model, self.registered_model_name, self.code_paths)
        return TrackedRun(logging, client, replace(place, tags=tags), self.run_name or run.name)

    def _beside(self, client: Any, active: Any) -> Place:
        """The run that is active, or one below it."""
        found = client.get_experiment(active.experiment_id)
        if self.experiment not in (None, found.name):
            raise InvalidInput(
                f"experiment is {self.experiment!r}, and the run that is active belongs to {found.name!r}; expected "
                "the same, or none, or mlflow.end_run() before the fit."
            )
        if self.run_name is None:
            return Place(found.experiment_id, run_id=active.run_id)
        return Place(found.experiment_id, tags={_PARENT: active.run_id})

    def _new(self, client: Any, *, default: bool) -> Place:
        """A run of its own, by default in the experiment that MLflow itself would take."""
        if self.experiment is None:
            # There is no public word for it: set_experiment's, that of the environment, or the default one.
            fluent = required("mlflow.tracking.fluent", EXTRA)
            return Place(client.get_experiment(fluent._get_experiment_id() if default else _DEFAULT).experiment_id)
        found = client.get_experiment_by_name(self.experiment)
        if found is None:
            return Place(None, new_experiment=self.experiment)
        if found.lifecycle_stage != "active":
            raise InvalidInput(f"the experiment {self.experiment!r} is deleted; restore it, or take another name.")
        return Place(found.experiment_id)

    def _tags(self, run: DriverRun) -> dict[str, str]:
        own = {"sparkdl.version": __version__}
        if run.directory is not None:
            own["sparkdl.runDir"] = public(run.directory)
        return own | {name: str(value) for name, value in (self.tags or {}).items()}
