"""The scheduled pipeline: cleans rows, trains, publishes a good model, and scores.

    spark-submit --py-files net.py jobs/etl_train.py --config adult.yaml --date 2026-11-22

The run cleans and splits the raw rows, checks them, and fits the stages. It evaluates the new model and the one in use
on the validation rows. If the new model passes the gate, it is published, and with ``register`` also registered in
MLflow. Then the model in use scores. The last line printed is the result as JSON. conf/train/adult.yaml is an example;
docs/pipeline.md shows it under cron and Airflow.

A run has the name of its date, of its run id, or of both. A finished run is not repeated without ``--redo``. A killed
run resumes at its last stage, and in training from the last checkpoint. A later call of the same run takes over from an
earlier one. While a later date's model is in use, a passing model is not published without ``--force``.

    root/CURRENT                   the name of the version in use
    root/versions/<name>/model     a pyspark.ml.PipelineModel
    root/scores/date=<date>        Parquet, complete or missing; with a run id root/scores/run=<name>
    root/runs/<name>               the finished stages of a run, see stage_log.py

Exit codes: 0 done, 1 failed, 2 bad configuration, 3 the gate rejected the model (or ``--refused-exit-code``), 4 bad
input, 5 a later run took over, 130 interrupted, 143 stopped by SIGTERM. After 1, 143 or a kill, the same command
resumes.
"""

from __future__ import annotations

import hashlib
import json
import pkgutil
from typing import Annotated, Any

import yaml
from pyspark.ml.evaluation import Evaluator
from pyspark.ml.param import Params

from sparkdl.cli.data import Data
from sparkdl.cli.exit_codes import ModelRejected
from sparkdl.cli.pipeline.check import validate
from sparkdl.cli.pipeline.cleaning import CleaningStage, ScoringStage, SplitStage
from sparkdl.cli.pipeline.gate import Gate
from sparkdl.cli.pipeline.registering import not_verified, register_once
from sparkdl.cli.pipeline.run_name import RunName
from sparkdl.cli.pipeline.stage_log import Ledger
from sparkdl.cli.pipeline.stages import PipelineRun
from sparkdl.cli.session import stopped_session
from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.fields import Count, checked, within
from sparkdl.ml.evaluation import finite
from sparkdl.ml.param_declaration import Scope
from sparkdl.ml.params import TrainingParams
from sparkdl.ml.persistence.reader_writer import modules_of, session_trust
from sparkdl.ml.persistence.registry import Versions
from sparkdl.ml.tracking.registration import Registration
from sparkdl.serving.format.factory import MODULES
from sparkdl.spark.session import forwarding_sigterm, qualify
from sparkdl.spark.warm_up import warm_up

# Settings that may differ when a run resumes: they do not affect the result.
_FREE = frozenset(TrainingParams.names_outside(Scope.PIPELINE))
_FREE_ARGUMENTS = frozenset(
    ("config", "date", "run_id", "root", "register", "keep", "redo", "force", "check", "refused_exit_code")
)  # those of the job


def etl_train(
    *,
    root: str,
    data: Data,
    stages: list[Params],
    evaluator: Evaluator,
    date: str | None = None,
    run_id: str | None = None,
    clean: CleaningStage | None = None,
    split: SplitStage | None = None,
    gate: Gate | None = None,
    score: ScoringStage | None = None,
    register: Registration | None = None,
    warm_start: bool = False,
    keep: int = 5,
    redo: bool = False,
    force: bool = False,
    check: bool = False,
    refused_exit_code: int = ModelRejected.code,
    configuration: str = "",
) -> None:
    """Train on a date's rows, publish the model if it is good enough, and score.

    Args:
        root: the folder of models, scores and ledgers.
        data: the raw rows; {date} and {run_id} in a path, table or query are replaced.
        stages: of the pipeline, estimators and transformers of pyspark.ml and of sparkdl; they learn clean.name.
        evaluator: computes the metric, for example pyspark.ml.evaluation.BinaryClassificationEvaluator.
        date: of the run, as 2026-11-22.
        run_id: a scheduler's name of the run, beside or in place of the date.
        clean: cleans raw rows; default: none.
        split: selects validation rows; default: a fifth of the rows, by a hash.
        gate: decides whether to publish a new model; default: if it is no worse than the model in use.
        score: rows that the model in use scores; default: none.
        register: the registered model in MLflow of which a published model becomes a version; default: none.
        warm_start: whether PyTorch stages start from the weights of the model in use.
        keep: how many published and how many rejected versions stay, beside the one in use.
        redo: do a finished or half finished run again from its beginning.
        force: publish a passing model even while a later date's model is in use.
        check: only validate configuration, columns and slots.
        refused_exit_code: the exit code if the gate rejects the model; 0 for schedulers that count it as a success.
        configuration: the command line and its file, as YAML.
    """
    name = RunName.of(date, run_id)
    checked(keep, Count, "keep")
    checked(refused_exit_code, Annotated[int, within(0, 255)], "refused_exit_code")
    steps: dict[str, Any] = {"data": data, "stages": stages, "evaluator": evaluator, "score": score}
    steps |= {
        "clean": clean or CleaningStage(),
        "split": split or SplitStage(),
        "gate": gate or Gate(),
        "register": register,
    }
    steps["gate"].all_metrics(evaluator)  # raises for two metrics of one name
    with stopped_session() as spark, forwarding_sigterm(spark):
        if check:
            print(validate(spark, name, **steps))
            return
        base, identity = qualify(spark, root), fingerprint(configuration)
        folder = files.join(base, f"runs/{name}")
        done = None if redo else Ledger.done(folder)
        if done is not None:
            print(f"{name} is finished" + ("" if done["configuration"] == identity else ", by another configuration"))
            if force and done["passed"] and not done["published"]:
                _check(register, stages)
                done = publish(done, Versions(base), folder, register)
        else:
            _check(register, stages)
            warm_up(spark)
            spark.conf.set(MODULES, ",".join([*session_trust(spark).modules, *modules_of(*stages)]))  # its own names
            ledger = Ledger.open(folder, identity)
            if redo:
                ledger.restart()
            done = PipelineRun(spark, name, base, ledger, **steps, warm_start=warm_start, force=force).finish(keep)
    print(summary(done))
    print(json.dumps(finite(done)))
    if not done["passed"]:
        refused = ModelRejected(f"the model of {name} is not published; {done['current'] or 'none'} is in use.")
        refused.code = refused_exit_code
        raise refused


def _check(register: Registration | None, stages: list[Params]) -> None:
    if register is not None:
        register.check(stages)


def publish(
    done: dict[str, Any], versions: Versions, folder: str, register: Registration | None = None
) -> dict[str, Any]:
    """Publish and register the version of a finished run that passed; return the run's result.

    Raises:
        InvalidInput: the version is deleted, or the run had no ``register``, so that nothing has verified the version.
    """
    name = done["version"]
    if not versions.is_complete(name):
        raise InvalidInput(f"the version {name} is deleted; --redo trains it again.")
    ledger = Ledger.open(folder, done["configuration"])
    if register is not None and ledger.result("verify") is None:
        raise not_verified(name)
    versions.publish(name)
    result = {**done, "published": True, "registered": register_once(ledger, register, versions, done)}
    ledger.close(result)
    return result


def fingerprint(configuration: str) -> str:
    """Hash the settings that the rows and the model depend on to twelve hexadecimal digits."""
    values = yaml.safe_load(configuration) or {}
    bound = {name: value for name, value in values.items() if name not in _FREE_ARGUMENTS}
    bound["stages"] = _bound(bound.get("stages"))
    return hashlib.sha256(json.dumps(bound, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _bound(stage: Any) -> Any:
    if isinstance(stage, list):
        return [_bound(item) for item in stage]
    if not isinstance(stage, dict) or not isinstance(stage.get("init_args"), dict):
        return stage
    bound = {name: _bound(value) for name, value in stage["init_args"].items() if name not in _FREE}
    for callback in stage["init_args"].get("callbacks") or ():
        path = callback["class_path"] if isinstance(callback, dict) else callback
        try:
            changes_result = getattr(pkgutil.resolve_name(path), "changes_result", False)
        except (ImportError, AttributeError, ValueError) as error:
            raise InvalidInput(f"the callback {path!r} cannot be imported: {error}.") from error
        if changes_result:
            bound.setdefault("callbacks", []).append(callback)
    return {**stage, "init_args": bound}


def summary(done: dict[str, Any]) -> str:
    """Format the result of a run in one to three lines."""
    fate = "published" if done["published"] else "rejected"
    if done["passed"] and not done["published"]:
        fate = f"passed, but {done['current']} of a later date stays in use (--force publishes it):"
    figures = [
        f"{name} {metric['value']:.4f}"
        + ("" if metric["in_use"] is None else f" (in use: {done['current']}, {metric['in_use']:.4f})")
        + (f" failed: {metric['reason']}" if metric.get("reason") else "")
        for name, metric in done["metrics"].items()
    ]
    text, scores = f"{fate} {done['version']}: {'; '.join(figures)}", done["scores"]
    if registered := done.get("registered"):
        text += f"\nregistered as version {registered['version']} of {registered['name']} in MLflow"
    if scores is None or scores["version"] is None:
        return text
    return f"{text}\n{scores['rows']} rows scored by {scores['version']}: {scores['path']}"
