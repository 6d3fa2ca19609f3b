"""The stages of a run; each may be repeated."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import Evaluator
from pyspark.ml.param import Params
from pyspark.sql import SparkSession

from sparkdl.cli.data import Data
from sparkdl.cli.exit_codes import BadInput, JobExit
from sparkdl.cli.pipeline.cleaning import CleaningStage, ScoringStage, SplitStage
from sparkdl.cli.pipeline.gate import Gate, evaluate
from sparkdl.cli.pipeline.registering import register_once, verify_version
from sparkdl.cli.pipeline.run_name import RunName
from sparkdl.cli.pipeline.spark_errors import reading_rows
from sparkdl.cli.pipeline.stage_log import Ledger
from sparkdl.ensembles.fitted import output_columns
from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.ml.model import TorchModel
from sparkdl.ml.persistence.reader_writer import load_saved
from sparkdl.ml.persistence.registry import Versions
from sparkdl.ml.tracking.registration import Registration
from sparkdl.ml.tuning.params import TunerParams
from sparkdl.ml.warm_start import WarmStart

_HELD, _SIDES = "sparkdl_held_out", ("train", "held out")


@dataclass(frozen=True)
class PipelineRun:
    """One run of the pipeline; the other attributes are the arguments of ``etl_train``."""

    spark: SparkSession
    name: RunName
    root: str  # a path or URI for both Spark and this process
    ledger: Ledger
    data: Data
    stages: list[Params]
    evaluator: Evaluator
    clean: CleaningStage
    split: SplitStage
    gate: Gate
    score: ScoringStage | None
    register: Registration | None
    warm_start: bool
    force: bool

    @property
    def versions(self) -> Versions:
        """The published models."""
        return Versions(self.root)

    def _path(self, name: str) -> str:
        return files.join(self.root, f"runs/{self.name}/{self.ledger.configuration}/{name}")

    @property
    def _version(self) -> str:
        return f"{self.name}-{self.ledger.configuration}-{self.ledger.run}"

    def _model(self, version: str) -> PipelineModel:
        model: PipelineModel = load_saved(self.versions.model(version), self.spark)
        return model

    def finish(self, keep: int) -> dict[str, Any]:
        """Do the unfinished stages and return the result.

        Raises:
            Superseded: a later run took over.
        """
        try:
            result = self._stages()
            self.ledger.check()
            self.tidy(keep)
            self.ledger.close(result)
        except Exception as error:
            if not isinstance(error, JobExit):
                self.ledger.check()  # a later run may have caused the error: it fences checkpoints and deletes files
            raise
        return result

    def _stages(self) -> dict[str, Any]:
        stage, versions = self.ledger.stage, self.versions
        over = self.ledger.noted("publish")  # then files of earlier stages may be deleted
        rows = stage(
            "etl",
            self.extract,
            lambda rows: all(rows[side]["rows"] and files.exists(rows[side]["path"]) for side in _SIDES) or over,
        )
        train, held_out = rows["train"], rows["held out"]
        print(f"{train['rows']} training rows, {held_out['rows']} validation rows", flush=True)
        start = stage(
            "start",
            lambda: {"version": versions.current() if self.warm_start else None},
            lambda start: start["version"] is None or versions.is_complete(start["version"]) or over,
        )
        name = stage(
            "train",
            lambda: self.train(train["path"], start["version"]),
            lambda model: versions.is_complete(model["version"]) or over,
        )["version"]
        print(f"trained version {name}", flush=True)
        judged = stage(
            "gate", lambda: self.evaluate(name, held_out["path"]), lambda judged: judged["version"] == name or over
        )
        if self.register is not None and judged["passed"]:  # first: a published model can be registered
            stage(
                "verify",
                lambda: verify_version(self.spark, versions, name, held_out["path"]),
                lambda verified: verified["version"] == name,
            )
        result = stage(
            "publish",
            lambda: self._publish(judged, held_out["path"]),
            lambda result: result["published"] or not (self.force and result["passed"]),
        )
        registered = register_once(self.ledger, self.register, versions, result) if result["published"] else None
        scores = None if self.score is None else stage("score", self.score_rows)
        of_run = {"run": str(self.name), "registered": registered, "configuration": self.ledger.configuration}
        return {**result, **of_run, "scores": scores}

    def extract(self) -> dict[str, Any]:
        """Clean the rows, split them, and write both sides."""
        folder = self._path(f"data-{self.ledger.run}")
        with reading_rows():
            rows = self.clean(self.name.fill(self.data).read(self.spark), labelled=True)
            # One pass writes both sides, as random values in SQL differ between passes.
            marked = rows.withColumn(_HELD, self.split(rows, self.name.day)).where(f"{_HELD} is not null")
            marked.write.mode("overwrite").partitionBy(_HELD).parquet(folder)
        sides = {
            "train": self._side(files.join(folder, f"{_HELD}=false"), "training row"),
            "held out": self._side(files.join(folder, f"{_HELD}=true"), "validation row"),
        }
        self.gate.check(self.spark.read.parquet(folder).drop(_HELD))
        return sides

    def _side(self, path: str, kind: str) -> dict[str, Any]:
        if not files.exists(path):
            raise BadInput(f"there is no {kind}; check data, clean.where and split.")
        rows, label = self.spark.read.parquet(path), self.clean.name
        if unlabelled := rows.where(rows[label].isNull()).count():
            raise BadInput(f"{unlabelled} {kind}s have no {label}; leave them out with clean.where.")
        return {"path": path, "rows": rows.count()}

    def train(self, path: str, start: str | None) -> dict[str, Any]:
        """Fit the stages, with the weights of version ``start`` if given, and save the model as a version."""
        # Other rows or another start make another training, with its own checkpoints.
        training = hashlib.sha256(f"{path} {start}".encode()).hexdigest()[:8]
        placed = [self._placed(stage, f"train-{training}-{number}") for number, stage in enumerate(self.stages)]
        try:
            warm: list[Any] = placed if start is None else _warmed(placed, self._model(start))
            with reading_rows():
                model = Pipeline(stages=warm).fit(self.spark.read.parquet(path))
            model.write().overwrite().save(self.versions.model(self._version))
        except (BadInput, InvalidInput):
            self.ledger.forget("etl")  # corrected raw rows must be read again
            raise
        self.ledger.check()  # a later run deletes unfinished files of an earlier one
        date = None if self.name.day is None else str(self.name.day)
        about = {"run": str(self.name), "date": date, "rows": path, "start": start if warm != placed else None}
        self.versions.complete(self._version, about)
        return {"version": self._version}

    def _placed(self, stage: Params, name: str) -> Params:
        if not stage.hasParam("runDir"):
            return stage
        if stage.isDefined("runDir") and stage.getOrDefault("runDir") is not None:
            kind = type(stage).__name__
            warnings.warn(f"runDir of the {kind} is ignored: the pipeline sets one for each run.", stacklevel=2)
        return _with(stage, "runDir", self._path(name))

    def evaluate(self, version: str, path: str) -> dict[str, Any]:
        """Compare a version with the one in use."""
        current = self.versions.current()
        beside = self.gate.compare and current not in (None, version)
        new = self._model(version)
        in_use = self._model(str(current)) if beside else None
        metrics = evaluate(self.gate.all_metrics(self.evaluator), new, in_use, self.spark.read.parquet(path))
        passed = all(metric["passed"] for metric in metrics.values())
        return {"version": version, "current": current, "metrics": metrics, "passed": passed}

    def _publish(self, judged: dict[str, Any], path: str) -> dict[str, Any]:
        version = judged["version"]
        while judged["passed"] and self.versions.current() not in (judged["current"], version):
            # Another run has published since; compare with its model.
            judged = self.evaluate(version, path)
        published = judged["passed"] and (self.force or not self._later(self.versions.current()))
        if published:
            self.ledger.check()
            self.versions.publish(version)
        else:
            self.versions.refuse(version)
        return {**judged, "published": published}

    def _later(self, version: str | None) -> bool:
        date = None if version is None else self.versions.about(version).get("date")
        return date is not None and self.name.day is not None and date > str(self.name.day)

    def score_rows(self) -> dict[str, Any]:
        """Write the scores of the model in use, all at once."""
        current, score = self.versions.current(), self.score
        if current is None or score is None:
            return {"version": None}
        model = self._model(current)
        with reading_rows():
            rows = self.clean(self.name.fill(score.data).read(self.spark), labelled=False)
            predictions, columns = model.transform(rows), output_columns(model)
            outputs = [name for name in (columns.prediction, columns.probability) if name in predictions.columns]
            staged = files.join(self.root, f"scores/_{self._version}")
            chosen = predictions.select(*(score.columns or [*rows.columns, *outputs]))
            chosen.write.mode("overwrite").parquet(staged)
        self.ledger.check()
        path = files.join(self.root, f"scores/{self.name.partition}")
        files.replace(staged, path)
        return {"version": current, "path": path, "rows": self.spark.read.parquet(path).count()}

    def tidy(self, keep: int) -> None:
        """Delete the run's rows, checkpoints and files of killed runs, and old versions."""
        runs = files.Folder.of(files.join(self.root, f"runs/{self.name}"))
        for configuration in runs.folders():
            for name in files.Folder.of(files.join(self.root, f"runs/{self.name}/{configuration}")).folders():
                of_fits = (f"{name}/checkpoints", f"{name}/members", f"{name}/trials")
                for path in (name,) if name.startswith("data-") else of_fits:
                    runs.delete(f"{configuration}/{path}")
                run = files.Folder.of(files.join(self.root, f"runs/{self.name}/{configuration}/{name}"))
                for path in (*run.sizes(""), *run.folders()):
                    if path.endswith(".safetensors") or path.startswith("parts-"):  # the published version has a copy
                        run.delete(path)
        scores = files.Folder.of(files.join(self.root, "scores"))
        for name in scores.folders():
            if self.name.owns(name):
                scores.delete(name)
        self.versions.discard(self.name.owns)
        self.versions.prune(keep)


def _with(stage: Params, name: str, value: object) -> Params:
    # Set, not copied with a map: a copy with a map is a fit of a search, in its own directory.
    stage = stage.copy()
    stage.set(stage.getParam(name), value)
    return stage


def _warmed(stages: list[Params], earlier: PipelineModel) -> list[Params]:
    warmed = [_warm(stage, model) for stage, model in zip_longest(stages, earlier.stages[: len(stages)])]
    if not any(isinstance(stage, (DistributedEstimator, TunerParams)) for stage in stages):
        warnings.warn("warm_start is ignored: no stage is a PyTorch estimator that trains a network.", stacklevel=2)
    return warmed


def _warm(stage: Params, earlier: object) -> Params:
    earlier = getattr(earlier, "bestModel", earlier)  # of a search
    if isinstance(stage, TunerParams):
        if not any(key.partition(".")[0] in ("model", "modelArgs") for key in stage.getParamSpace()):
            return _with(stage, "estimator", _warm(stage.getEstimator(), earlier))
        warnings.warn("training ignores the weights of the model in use: paramSpace varies the model.", stacklevel=2)
    if not isinstance(stage, DistributedEstimator):
        return stage
    try:
        if not isinstance(earlier, TorchModel):
            kind = "nothing" if earlier is None else f"a {type(earlier).__name__}"
            raise InvalidInput(f"the model in use has {kind} in its place.")
        start = WarmStart.of(earlier, stage.objective().model)  # whose factory has the modelArgs
        return _with(_with(stage, "modelArgs", {}), "model", start)
    except InvalidInput as error:
        warnings.warn(f"training ignores the weights of the model in use: {error}", stacklevel=2)
        return stage
