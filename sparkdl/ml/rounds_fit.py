"""Fits in rounds: ``strategy`` is an algorithm; Params, history and model are the same as on a gang.

The rows are divided into ``numWorkers`` shards. As many tasks run at a time as there are slots.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from dataclasses import fields, replace
from typing import Any

from sparkdl.cluster.protocol import Cluster
from sparkdl.data.columns import InputColumn
from sparkdl.data.transforms import Transforms
from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.weights import pack
from sparkdl.ml.fit_monitor import FitMonitor
from sparkdl.ml.fit_spec import FitResult, FitSpec
from sparkdl.ml.persistence.describe import describe
from sparkdl.ml.report import rates, shares
from sparkdl.ml.run import IDENTITY, own_checkpoints
from sparkdl.rounds import Algorithm
from sparkdl.rounds.loop import Rounds
from sparkdl.rounds.parameters import module_of


def fit_rounds(fit: FitSpec, cluster: Cluster, watch: FitMonitor) -> FitResult:
    """Train in rounds of tasks that need not be alive together."""
    assert fit.algorithm is not None
    start, algorithm, training = time.monotonic(), fit.algorithm, fit.training
    _check(fit, algorithm)
    columns, client = fit.columns, getattr(algorithm, "client", None)
    if client is not None:
        columns = replace(columns, client=InputColumn(client, "int64"))
    augment = training.augment if algorithm.uses_optimizer else None
    limits = [limit for limit in (getattr(algorithm, "rounds", None), fit.max_rounds) if limit is not None]
    fit = replace(fit, descriptions={**fit.descriptions, "strategy": _described(algorithm), "callbacks": "[]"})
    directory, saves = fit.run.directory, fit.run.directory is not None and fit.checkpoint_interval != "never"
    checkpoints = own_checkpoints(fit.run, fit.descriptions) if saves else None
    earlier = 0.0 if checkpoints is None else time.time() - checkpoints.began
    with tempfile.TemporaryDirectory(prefix="sparkdl-", ignore_cleanup_errors=True) as folder:
        rounds = Rounds(
            algorithm,
            training.objective,
            training.seed,
            checkpoints,
            files.join(directory or folder, "memories"),
            max_rounds=fit.max_rounds,
            max_seconds=fit.max_seconds,
            patience=training.patience,
            min_delta=training.min_delta,
            keep_best=training.keeps_best(validated=columns.validation is not None),
            classes=training.classes,
            kind=training.kind,
            transforms=Transforms(training.collate, augment, training.objective.criterion().denominators) or None,
            listener=lambda row: watch.event_log.note("round", {**row, "rounds": min(limits, default=None)}),
            inspected=lambda data: watch.event_log.note(
                "rows", {"training": sum(data.training), "validation": sum(data.validation)}
            ),
            restored=lambda rows: watch.event_log.note("restored", {"history": rows}),
        )
        watch.begin(fit.data.sparkSession)
        listener = watch.event_log if training.measured else None
        if checkpoints is not None:
            fit.run.save(IDENTITY, fit.descriptions)
        shuffle = getattr(algorithm, "shuffle", True)
        with cluster.map_reduce(fit.data, columns, shuffle=shuffle, listener=listener) as jobs:
            state, history = rounds.run(jobs)
    assert rounds.summary is not None
    status = str(history[-1].get("status", "")) if history else ""
    if status.startswith("stopped"):
        warnings.warn(f"{type(algorithm).__name__} {status}. The model has the best weights so far.", stacklevel=3)
    report = _report(rounds, history, earlier + time.monotonic() - start)
    weights = pack(module_of(training.objective, state["weights"]))
    return FitResult(weights, history, report, rounds.summary.output, rounds.summary.inputs)


def _check(fit: FitSpec, algorithm: Algorithm) -> None:
    name, training = type(algorithm).__name__, fit.training
    precision = training.objective.precision
    if precision not in ("fp32", "fp64") and not algorithm.uses_optimizer:
        raise InvalidInput(
            f"precision is {precision!r}; expected 'fp32' or 'fp64' with {name}, whose tasks take no optimizer steps."
        )
    compared = training.keeps_best(validated=False) or training.patience is not None
    unknown = training.objective.monitor is None and fit.columns.validation is None
    if compared and unknown and not getattr(algorithm, "reports_loss", True):
        setting = "keepBest is True" if training.patience is None else f"patience is {training.patience}"
        raise InvalidInput(
            f"{setting}, but {name} reports no loss; set validationIndicatorCol or validationFraction, or monitor, or "
            f"leave all out: {name} stops by its own rule."
        )


def _described(algorithm: Algorithm) -> Any:
    """Describe an algorithm without its number of rounds: a run may resume with more of them."""
    limited = "rounds" in {field.name for field in fields(algorithm)}  # type: ignore[arg-type]
    return describe(replace(algorithm, rounds=1) if limited else algorithm)  # type: ignore[type-var]


def _report(rounds: Rounds, history: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    assert rounds.summary is not None
    rows = [sum(pair) for pair in zip(rounds.summary.training, rounds.summary.validation, strict=True)]
    return {
        "seconds": seconds,
        **rates(sum(rounds.summary.training) * len(history), sum(row["seconds"] for row in history)),
        "bytes": rounds.sent,
        "restarts": 0 if rounds.checkpoints is None else rounds.checkpoints.next_attempt() - 1,
        "workers": [len(rows)],
        "rounds": len(history),
        "best_round": rounds.best,
        "keeps_best": rounds.keep_best,
        "validation_rows": sum(rounds.summary.validation),
        **shares("rows_by_part", rows),
    }
