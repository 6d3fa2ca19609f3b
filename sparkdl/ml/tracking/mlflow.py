"""Logs runs to MLflow: parameters, metrics, tags, artifacts and the model.

Each fit logs to a new run of MLflow, or to the active one, which stays active. A fit that resumes in its ``runDir``
logs to another run, with the earlier rows; both have the same tag ``sparkdl.runDir``. If the driver is killed, its run
stays RUNNING.

If the tracking server cannot be reached, ``fit`` raises before workers start. Later only the end of the fit waits for
it, 60 seconds at most. The tracker uses its own client, and leaves ``mlflow.set_tracking_uri`` unchanged.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from sparkdl import __version__
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields
from sparkdl.io.optional_imports import required
from sparkdl.io.redaction import public
from sparkdl.ml.model import TorchModel
from sparkdl.ml.report import Report
from sparkdl.ml.tracking.connection import (
    EXTRA,
    REFUSED,
    connect,
    experiment_id,
    make_experiment,
    metrics_of,
    store_errors,
)
from sparkdl.ml.tracking.mlflow_model import log_model, register, served_torch_model
from sparkdl.ml.tracking.tracker import TrackerContext, read_row

_PARENT = "mlflow.parentRunId"
_EVERY = 5.0  # seconds between batches of step metrics
_BATCH = 100  # parameters, tags or metrics in a request; MLflow limits the total to 1 000
_STOPPED = ("Stopped:", "KeyboardInterrupt:")  # errors of runs that a person stopped


@dataclass(frozen=True)
class MLflowDestination:
    """The MLflow run to log to; without ``run_id`` a new one, without ``experiment_id`` in a new experiment."""

    experiment_id: str | None
    run_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MLflow(CheckedFields):
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

    def _check(self) -> None:
        if self.registered_model_name is not None and not self.log_model:
            raise InvalidInput(
                f"registered_model_name is {self.registered_model_name!r}, but log_model is False; MLflow registers "
                "only logged models."
            )

    def prepare(self, run: TrackerContext) -> _TrackedRun:
        """Make the object that logs this run.

        Raises:
            InvalidInput: MLflow is not installed or cannot be reached, or the settings contradict the active run.
        """
        client, default = connect(self.tracking_uri)
        with store_errors(client.tracking_uri):
            active = required("mlflow", EXTRA).active_run() if default else None
            if active is None:
                place = MLflowDestination(experiment_id(client, self.experiment, default=default))
            else:
                place = self._beside(client, active.info)
        directory = {} if run.directory is None else {"sparkdl.runDir": public(run.directory)}
        more = {name: str(value) for name, value in (self.tags or {}).items()}
        tags = {**place.tags, "sparkdl.version": __version__, **directory, **more}
        if place.run_id is None:  # user, and notebook, job or commit
            tags = required("mlflow.tracking.context.registry", EXTRA).resolve_tags(tags)
        return _TrackedRun(self, client, replace(place, tags=tags), self.run_name or run.name)

    def _beside(self, client: Any, active: Any) -> MLflowDestination:
        experiment = client.get_experiment(active.experiment_id)
        if self.experiment not in (None, experiment.name):
            raise InvalidInput(
                f"experiment is {self.experiment!r}, but the active run belongs to {experiment.name!r}; expected the "
                "same, none, or mlflow.end_run() before the fit."
            )
        if self.run_name is None:
            return MLflowDestination(active.experiment_id, run_id=active.run_id)
        return MLflowDestination(active.experiment_id, tags={_PARENT: active.run_id})


class _TrackedRun:
    def __init__(self, settings: MLflow, client: Any, place: MLflowDestination, name: str) -> None:
        self._settings, self._client, self._place, self._name = settings, client, place, name
        self._run_id: str | None = None
        self._waiting: list[Any] = []
        self._sent = 0.0
        self._last = 0

    def on_start(self, run: TrackerContext) -> None:
        tags = self._place.tags
        if self._place.run_id is None:
            experiment = self._place.experiment_id or make_experiment(self._client, self._settings.experiment)
            self._run_id = self._client.create_run(experiment, tags=tags, run_name=self._name).info.run_id
        else:
            self._run_id, tag = self._place.run_id, required("mlflow.entities", EXTRA).RunTag
            self._client.log_batch(self._run_id, tags=[tag(*item) for item in tags.items()])
        self._log_params(self._run_id, run.configuration)
        self._client.log_dict(self._run_id, dict(run.environment), "environment.json")

    def on_step(self, run: TrackerContext) -> None:
        if self._run_id is not None:
            figures = {f"step_{name}": value for name, value in run.values.items()}
            self._waiting += metrics_of(figures, run.clock["step"])
            if time.monotonic() - self._sent >= _EVERY:
                self._send(self._run_id)

    def on_epoch(self, run: TrackerContext) -> None:
        if self._run_id is not None:
            number, figures = read_row(run.history[-1])
            self._last = max(self._last, number)
            self._waiting += metrics_of(figures, number)
            self._send(self._run_id)

    def on_end(self, run: TrackerContext) -> None:
        run_id = self._run_id
        if run_id is None:
            return
        errors = []
        steps = (self._log_error, self._send, self._log_trials, self._log_artifacts, self._log_page, self._log_model)
        for write in steps:
            try:
                write(run_id, run)
            except Exception as error:  # a failure must not prevent the other steps
                errors.append(error)
        if self._place.run_id is None:
            stopped = run.error is not None and run.error.startswith(_STOPPED)
            status = "FINISHED" if run.error is None else "KILLED" if stopped else "FAILED"
            self._client.set_terminated(run_id, status)
        if errors:
            raise errors[0]

    def _log_params(self, run_id: str, values: Mapping[str, Any]) -> None:
        entities, validation = required("mlflow.entities", EXTRA), required("mlflow.utils.validation", EXTRA)
        texts = {
            REFUSED.sub("_", name): _text(value, validation.MAX_PARAM_VAL_LENGTH) for name, value in values.items()
        }
        logged = self._client.get_run(run_id).data.params
        changed = [name for name, text in texts.items() if logged.get(name, text) != text]
        if changed:
            warnings.warn(
                f"the active MLflow run keeps its other values of {', '.join(changed)}; with run_name=..., each fit "
                "logs to a child run.",
                stacklevel=2,
            )
        params = [entities.Param(name, text) for name, text in texts.items() if name not in logged]
        for start in range(0, len(params), _BATCH):
            self._client.log_batch(run_id, params=params[start : start + _BATCH])

    def _send(self, run_id: str, _: TrackerContext | None = None) -> None:
        waiting, self._waiting = self._waiting, []  # a failed request is not repeated
        for start in range(0, len(waiting), _BATCH):
            self._client.log_batch(run_id, metrics=waiting[start : start + _BATCH])
        self._sent = time.monotonic()

    def _log_error(self, run_id: str, run: TrackerContext) -> None:
        if run.error is not None:
            self._client.set_tag(run_id, "sparkdl.error", run.error)

    def _log_trials(self, run_id: str, run: TrackerContext) -> None:
        experiment = self._client.get_run(run_id).info.experiment_id
        for trial in run.report.get("trials", ()):
            tags = {**self._place.tags, _PARENT: run_id, "sparkdl.state": trial["state"]}
            tags |= {} if trial["error"] is None else {"sparkdl.error": trial["error"]}
            child = self._client.create_run(experiment, tags=tags, run_name=f"trial {trial['number']}").info.run_id
            self._log_params(child, trial["params"])
            for epoch, value in enumerate(trial["history"], start=1):
                self._waiting += metrics_of({"value": value}, epoch)
            self._send(child)
            self._client.set_terminated(child, "FAILED" if trial["state"] == "failed" else "FINISHED")

    def _log_artifacts(self, run_id: str, run: TrackerContext) -> None:
        for name, values in (("history", run.history), ("report", dict(run.report))):
            self._client.log_text(run_id, json.dumps(values, indent=2, default=str), f"{name}.json")

    def _log_page(self, run_id: str, run: TrackerContext) -> None:
        if find_spec("plotly") is None:
            return
        with tempfile.TemporaryDirectory(prefix="sparkdl-") as folder:
            path = os.path.join(folder, "report.html")
            Report(run.report, history=run.history, directory=run.directory).html(path)
            self._client.log_artifact(run_id, path)

    def _log_model(self, run_id: str, run: TrackerContext) -> None:
        settings = self._settings
        model = getattr(run.model, "bestModel", run.model)  # of a search
        if not settings.log_model or not isinstance(model, TorchModel):
            return
        logged_run = self._client.get_run(run_id)
        served = served_torch_model(model)
        logged = log_model(self._client, logged_run, served, code_paths=settings.code_paths, step=self._last)
        if settings.registered_model_name is not None:
            register(self._client, logged, settings.registered_model_name)


def _text(value: Any, longest: int) -> str:
    text = json.dumps(value) if isinstance(value, (list, dict)) else str(value)
    return text if len(text) <= longest else text[: longest - 3] + "..."
