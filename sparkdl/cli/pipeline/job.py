"""The scheduled pipeline: cleans a date's rows, trains, publishes a good model, and scores.

    spark-submit --py-files net.py jobs/etl_train.py --config adult.yaml --date 2026-11-22

The run cleans and splits the raw rows and fits the stages. It evaluates the new model and the one in use on the
validation rows. If the new model passes the gate, it is published. Then the model in use scores. conf/train/adult.yaml
is an example; docs/pipeline.md shows it under cron and Airflow.

A finished date is not repeated. A killed run resumes at its last stage, and in training from the last checkpoint. A
later run of the same date takes over from an earlier one.

    root/CURRENT                   the name of the version in use
    root/versions/<name>/model     a pyspark.ml.PipelineModel
    root/scores/date=<date>        Parquet, complete or missing
    root/runs/<date>               the finished stages of a date, see stage_log.py

Exit codes: 0 done, 1 failed, 2 bad configuration, 3 the gate rejected the model, 4 bad input, 5 a later run took over,
130 interrupted, 143 stopped by SIGTERM. After 1, 143 or a kill, the same command resumes.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from typing import Any

import yaml
from pyspark.ml.evaluation import Evaluator
from pyspark.ml.param import Params
from pyspark.sql import SparkSession

from sparkdl.cli.data import Data
from sparkdl.cli.exit_codes import Refused
from sparkdl.cli.pipeline.cleaning import Clean, Split
from sparkdl.cli.pipeline.stage_log import Ledger
from sparkdl.cli.pipeline.stages import Gate, PipelineRun, Score
from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.ml.param_declaration import Scope
from sparkdl.ml.params import TrainingParams
from sparkdl.spark.jvm import forwarding_sigterm, qualify
from sparkdl.spark.warm_up import warm_up

# Settings that may differ when a run resumes: they do not affect the result.
_FREE = frozenset(TrainingParams.names_outside(Scope.PIPELINE))
_FREE_ARGUMENTS = frozenset(("config", "date", "root", "keep"))  # those of the job


def etl_train(
    *,
    date: str,
    root: str,
    data: Data,
    stages: list[Params],
    evaluator: Evaluator,
    clean: Clean | None = None,
    split: Split | None = None,
    gate: Gate | None = None,
    score: Score | None = None,
    warm_start: bool = False,
    keep: int = 5,
    configuration: str = "",
) -> None:
    """Train on a date's rows, publish the model if it is good enough, and score.

    Args:
        date: of the run, as 2026-11-22.
        root: the folder of models, scores and ledgers.
        data: the raw rows; {date} in a path, table or query is the date.
        stages: of the pipeline, estimators and transformers of pyspark.ml and of sparkdl; they learn clean.name.
        evaluator: computes the metric, for example pyspark.ml.evaluation.BinaryClassificationEvaluator.
        clean: cleans raw rows; default: none.
        split: selects validation rows; default: a fifth of the rows, by a hash.
        gate: decides whether to publish a new model; default: if it is no worse than the model in use.
        score: rows that the model in use scores; default: none.
        warm_start: whether PyTorch stages start from the weights of the model in use.
        keep: how many published and how many rejected versions stay, beside the one in use.
        configuration: the command line and its file, as YAML.
    """
    try:
        day = datetime.date.fromisoformat(date)
    except ValueError as error:
        raise InvalidInput(f"date is {date!r}; expected one as 2026-11-22.") from error
    if keep < 1:
        raise InvalidInput(f"keep is {keep}; expected a number of versions, at least 1.")
    steps = clean or Clean(), split or Split(), gate or Gate(), score, warm_start
    with SparkSession.builder.getOrCreate() as spark, forwarding_sigterm(spark):
        base, identity = qualify(spark, root), fingerprint(configuration)
        folder = files.join(base, f"runs/{day}")
        if done := Ledger.done(folder):
            print(f"{day} is finished" + ("" if done["configuration"] == identity else ", by another configuration"))
        else:
            warm_up(spark)
            ledger = Ledger.open(folder, identity)
            done = PipelineRun(spark, day, base, ledger, data, stages, evaluator, *steps).finish(keep)
    print(summary(done))
    if not done["passed"]:
        raise Refused(f"the model of {day} is not published; {done['current'] or 'none'} is in use.")


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
    return {**stage, "init_args": {name: _bound(v) for name, v in stage["init_args"].items() if name not in _FREE}}


def summary(done: dict[str, Any]) -> str:
    """Format the result of a date in one or two lines."""
    against = "" if done["in_use"] is None else f" (in use: {done['current']}, {done['in_use']:.4f})"
    fate = "published" if done["passed"] else "rejected"
    text = f"{fate} {done['version']}: {done['metric']} {done['value']:.4f}{against}"
    scores = done["scores"]
    if scores is None or scores["version"] is None:
        return text
    return f"{text}\n{scores['rows']} rows scored by {scores['version']}: {scores['path']}"
