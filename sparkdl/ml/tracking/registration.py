"""Registers a saved PipelineModel in MLflow, as one artifact that Spark and ``mlflow.pyfunc`` load."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.ml.param import Params
from pyspark.sql import DataFrame

from sparkdl import __version__
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields
from sparkdl.io.optional_imports import required
from sparkdl.ml.tracking.connection import EXTRA, connect, experiment_id, make_experiment, metrics_of, store_errors
from sparkdl.ml.tracking.mlflow_model import log_model, register
from sparkdl.ml.tracking.pipeline_model import VerifiedColumns, check_stages, verify
from sparkdl.spark.session import qualify

VERSION_TAG = "sparkdl.pipeline.version"
"""The tag of MLflow's run and of its model version with the name under which the pipeline was saved."""

_PAGE = 200


@dataclass(frozen=True)
class Registration(CheckedFields):
    """Registers pipelines as versions of one model in MLflow.

    Args:
        name: of the registered model; created if missing.
        tracking_uri: of the server or store; default: MLflow's own. Not in the ``repr``, as a URI may hold credentials.
        experiment: of the run with the metrics; created if missing. Default: MLflow's current one.
        alias: of the registered model, which moves to the new version; null: none.
        code_paths: local files and folders with the network's code, logged with the model.

    Raises:
        InvalidInput: the name is no name of a registered model, or a code path does not exist.
    """

    name: str
    tracking_uri: str | None = field(default=None, repr=False)
    experiment: str | None = None
    alias: str | None = "champion"
    code_paths: list[str] = field(default_factory=list)

    def _check(self) -> None:
        if not self.name.strip() or {*self.name} & {*"/:'\""}:
            raise InvalidInput(f"the registered model has the name {self.name!r}; expected one without / : and quotes.")
        for path in self.code_paths:
            if not os.path.exists(path):
                raise InvalidInput(f"code_paths has {path!r}, which does not exist; expected files and folders.")

    def check(self, stages: Sequence[Params]) -> None:
        """Check, before training, that a pipeline of these stages can be registered.

        Raises:
            InvalidInput: MLflow is not installed or does not answer, or a stage cannot be served without Spark.
        """
        check_stages(stages)
        client, default = connect(self.tracking_uri)
        with store_errors(client.tracking_uri):
            experiment_id(client, self.experiment, default=default)
            client.search_registered_models(max_results=1)

    def register(
        self,
        path: str,
        rows: DataFrame,
        *,
        metrics: Mapping[str, float] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """Verify a saved pipeline, register it, and move the alias to it.

        Args:
            path: a path or URI of the folder that ``PipelineModel.save`` wrote, for Spark and this process.
            rows: rows on which to compare the predictions with Spark's; the first 500 count.
            metrics: of the run, by name.
            tags: of the run and of the version.

        Returns:
            ``name`` of the registered model, and ``version``.

        Raises:
            InvalidInput: a stage cannot be served without Spark, or MLflow does not answer.
            SparkdlError: the predictions without Spark differ.
        """
        verified, place = verify(path, rows), qualify(rows.sparkSession, path)
        registered = self.log(place, verified, version=uuid.uuid4().hex, metrics=metrics or {}, tags=tags or {})
        self.point(registered)
        return registered

    def log(
        self,
        uri: str,
        verified: VerifiedColumns,
        *,
        version: str,
        metrics: Mapping[str, float],
        tags: Mapping[str, str],
    ) -> dict[str, str]:
        """Log a run, its metrics and the pipeline, and register it, unless ``version`` is registered already."""
        client, default = connect(self.tracking_uri)
        with store_errors(client.tracking_uri):
            experiment = experiment_id(client, self.experiment, default=default)
            experiment = experiment or make_experiment(client, self.experiment)
        run, registered = self._earlier(client, experiment, version)
        if registered is None:
            tags = {**tags, VERSION_TAG: version, "sparkdl.version": __version__}
            if run is None:
                # User, and notebook, job or commit.
                resolved = required("mlflow.tracking.context.registry", EXTRA).resolve_tags(tags)
                run = client.create_run(experiment, tags=resolved, run_name=version)
            client.log_batch(run.info.run_id, metrics=metrics_of(metrics, 0))
            logged = log_model(client, run, verified.served(uri), code_paths=self.code_paths)
            registered = register(client, logged, self.name, tags)
        client.set_terminated(run.info.run_id, "FINISHED")
        return {"name": self.name, "version": str(registered.version)}

    def point(self, registered: Mapping[str, str]) -> None:
        """Move the alias to a version."""
        if self.alias is not None:
            client, _ = connect(self.tracking_uri)
            client.set_registered_model_alias(registered["name"], self.alias, registered["version"])

    def _earlier(self, client: Any, experiment: str, version: str) -> tuple[Any, Any]:
        runs = client.search_runs([experiment], f"tags.`{VERSION_TAG}` = '{version}'", max_results=1)
        if not runs:
            return None, None
        token = None
        while True:  # all pages: not every registry filters versions by run or tag
            page = client.search_model_versions(f"name = '{self.name}'", max_results=_PAGE, page_token=token)
            registered = next((one for one in page if one.run_id == runs[0].info.run_id), None)
            token = page.token
            if registered is not None or not token:
                return runs[0], registered
