"""Logs one run to MLflow."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from sparkdl.ml.model import TorchModel
from sparkdl.ml.report import Report
from sparkdl.ml.tracking.mlflow_model import EXTRA, log_model, register
from sparkdl.ml.tracking.optional_imports import required
from sparkdl.ml.tracking.rows import configuration, read_row
from sparkdl.ml.tracking.tracker import TrackerContext

_EVERY = 5.0  # seconds between batches of step metrics
_BATCH = 100  # parameters, tags or metrics in a request; MLflow limits the total to 1 000
_STOPPED = ("Stopped:", "KeyboardInterrupt:")  # errors of runs that a person stopped
_REFUSED = re.compile(r"[^\w\-. :/]")  # characters that names may not have


@dataclass(frozen=True)
class Place:
    """The MLflow run to log to.

    Attributes:
        experiment_id: of the experiment; None if it is to be created.
        new_experiment: the name of an experiment to create.
        run_id: of an existing run; None for a new one.
        tags: of the run.
    """

    experiment_id: str | None
    new_experiment: str = ""
    run_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelLogging:
    """Settings for logging the model.

    Attributes:
        log: whether to log the model.
        registered_name: register it as a version of this model; None to skip.
        code_paths: local files and folders with the model's code.
    """

    log: bool = True
    registered_name: str | None = None
    code_paths: Sequence[str] = ()


class TrackedRun:
    """Logs one run.

    Args:
        logging: settings for the model.
        client: MLflow's.
        place: the MLflow run to log to.
        name: of a new run.
    """

    def __init__(self, logging: ModelLogging, client: Any, place: Place, name: str) -> None:
        self._logging, self._client, self._place, self._name = logging, client, place, name
        self._run_id: str | None = None
        self._waiting: list[Any] = []
        self._sent = 0.0
        self._last = 0

    def on_start(self, run: TrackerContext) -> None:
        """Create the run unless it exists; log configuration and environment."""
        place = self._place
        if place.run_id is None:
            experiment = place.experiment_id or self._make_experiment(place.new_experiment)
            self._run_id = self._client.create_run(experiment, tags=place.tags, run_name=self._name).info.run_id
        else:
            self._run_id, tag = place.run_id, required("mlflow.entities", EXTRA).RunTag
            self._client.log_batch(self._run_id, tags=[tag(*each) for each in place.tags.items()])
        self._log_params(self._run_id, configuration(run))
        self._client.log_dict(self._run_id, dict(run.environment), "environment.json")

    def on_step(self, run: TrackerContext) -> None:
        """Log a gang's step metrics, at most every 5 s."""
        if self._run_id is not None:
            self._measure(run.clock["step"], {f"step_{name}": value for name, value in run.values.items()})
            if time.monotonic() - self._sent >= _EVERY:
                self._send(self._run_id)

    def on_epoch(self, run: TrackerContext) -> None:
        """Log the new row."""
        if self._run_id is not None:
            number, figures = read_row(run.history[-1])
            self._last = max(self._last, number)
            self._measure(number, figures)
            self._send(self._run_id)

    def on_end(self, run: TrackerContext) -> None:
        """Log the report, artifacts and model, and set the run's status."""
        run_id = self._run_id
        if run_id is None:
            return
        failures = []
        for write in (self._log_error, self._send, self._log_artifacts, self._log_page, self._log_model):
            try:
                write(run_id, run)
            except Exception as error:  # a failure must not prevent the other steps
                failures.append(error)
        if self._place.run_id is None:
            self._client.set_terminated(run_id, _status(run.error))
        if failures:
            raise failures[0]

    def _make_experiment(self, name: str) -> str:
        try:
            return str(self._client.create_experiment(name))
        except required("mlflow.exceptions", EXTRA).MlflowException:
            found = self._client.get_experiment_by_name(name)  # another process may have created it meanwhile
            if found is None:
                raise
            return str(found.experiment_id)

    def _log_params(self, run_id: str, values: Mapping[str, Any]) -> None:
        entities, validation = required("mlflow.entities", EXTRA), required("mlflow.utils.validation", EXTRA)
        texts = {
            _REFUSED.sub("_", name): _text(value, validation.MAX_PARAM_VAL_LENGTH) for name, value in values.items()
        }
        there = self._client.get_run(run_id).data.params
        other = [name for name, text in texts.items() if there.get(name, text) != text]
        if other:
            warnings.warn(
                f"the active MLflow run keeps its other values of {', '.join(other)}; with run_name=..., each fit logs "
                "to a child run.",
                stacklevel=2,
            )
        params = [entities.Param(name, text) for name, text in texts.items() if name not in there]
        for start in range(0, len(params), _BATCH):
            self._client.log_batch(run_id, params=params[start : start + _BATCH])

    def _measure(self, step: int, figures: Mapping[str, float]) -> None:
        metric, now = required("mlflow.entities", EXTRA).Metric, int(time.time() * 1000)
        self._waiting += [metric(_REFUSED.sub("_", name), value, now, step) for name, value in figures.items()]

    def _send(self, run_id: str, _: TrackerContext | None = None) -> None:
        waiting, self._waiting = self._waiting, []  # a failed request is not repeated
        for start in range(0, len(waiting), _BATCH):
            self._client.log_batch(run_id, metrics=waiting[start : start + _BATCH])
        self._sent = time.monotonic()

    def _log_error(self, run_id: str, run: TrackerContext) -> None:
        if run.error is not None:
            self._client.set_tag(run_id, "sparkdl.error", run.error)

    def _log_artifacts(self, run_id: str, run: TrackerContext) -> None:
        with tempfile.TemporaryDirectory(prefix="sparkdl-") as folder:
            for name, values in (("history", run.history), ("report", dict(run.report))):
                with open(os.path.join(folder, f"{name}.json"), "w", encoding="utf-8") as file:
                    json.dump(values, file, indent=2, default=str)
            self._client.log_artifacts(run_id, folder)

    def _log_page(self, run_id: str, run: TrackerContext) -> None:
        if find_spec("plotly") is None:
            return
        with tempfile.TemporaryDirectory(prefix="sparkdl-") as folder:
            path = os.path.join(folder, "report.html")
            Report(run.report, history=run.history, directory=run.directory).html(path)
            self._client.log_artifact(run_id, path)

    def _log_model(self, run_id: str, run: TrackerContext) -> None:
        logging = self._logging
        if not logging.log or not isinstance(run.model, TorchModel):
            return
        found = self._client.get_run(run_id)
        logged = log_model(self._client, found, run.model, code_paths=logging.code_paths, step=self._last)
        if logging.registered_name is not None:
            register(self._client, logged, logging.registered_name)


def _status(error: str | None) -> str:
    if error is None:
        return "FINISHED"
    return "KILLED" if error.startswith(_STOPPED) else "FAILED"


def _text(value: Any, longest: int) -> str:
    text = json.dumps(value) if isinstance(value, (list, dict)) else str(value)
    return text if len(text) <= longest else text[: longest - 3] + "..."
