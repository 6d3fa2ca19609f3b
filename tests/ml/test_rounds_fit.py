"""Estimators with algorithms of rounds: the same Params, history, model and ``transform`` as with a gang."""

import json
import warnings

import pytest
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from torchmetrics.classification import MulticlassAccuracy

from docs.examples.algorithm import GradientDescent
from sparkdl import LBFGS, ConsensusADMM, FederatedAveraging, InvalidInput, ParallelSGD
from tests.ml import nets, rows
from tests.ml.rows import ROWS
from tests.rounds.algorithms.test_lbfgs import misleading

pytestmark = pytest.mark.cluster


def classifier(strategy, **values):
    return rows.classifier(strategy=strategy, **values)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        ParallelSGD(rounds=2, shard_batch_size=8),
        FederatedAveraging("owner", client_fraction=0.5, rounds=2, batch_size=4),
    ],
    ids=["parallel SGD", "federated averaging"],
)
def test_history_report_and_predictions(data, tmp_path, strategy):
    metrics, run = {"accuracy": MulticlassAccuracy(3, average="micro")}, tmp_path / "run"
    fitted = classifier(strategy, validationIndicatorCol="valid", metrics=metrics, runDir=str(run)).fit(data)
    assert [row["round"] for row in fitted.history] == [1, 2]
    assert {"loss", "valid_loss", "valid_accuracy", "seconds"} <= set(fitted.history[-1])
    assert fitted.report["rows"] == sum(fitted.report["rows_by_part"]) == ROWS
    assert json.loads((run / "history.json").read_text()) == fitted.history
    predictions = fitted.transform(data)
    assert predictions.count() == ROWS
    accuracy = MulticlassClassificationEvaluator(metricName="accuracy").evaluate(predictions.where("valid"))
    assert accuracy == pytest.approx(fitted.history[-1]["valid_accuracy"])


def test_users_own_algorithm_resumes_with_more_rounds(data, tmp_path):
    estimator = classifier(GradientDescent(0.5, 3), model=nets.two_scores, runDir=str(tmp_path / "run"))
    first = estimator.fit(data)
    losses = [row["loss"] for row in first.history]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)
    longer = estimator.setStrategy(GradientDescent(0.5, 5)).fit(data)
    assert [row["loss"] for row in longer.history][:3] == losses
    assert (first.report["restarts"], longer.report["restarts"]) == (0, 1)
    assert longer.report["seconds"] > first.report["seconds"]
    with pytest.raises(InvalidInput, match="another run"):
        estimator.setStrategy(GradientDescent(0.4, 5)).fit(data)


def test_no_checkpoints_and_no_time(data, tmp_path):
    never = {"checkpointInterval": "never", "maxRounds": 2, "runDir": str(tmp_path)}
    fitted = classifier(ConsensusADMM(), model=nets.two_scores, **never).fit(data)
    assert len(fitted.history) == 2
    assert not (tmp_path / "checkpoints").exists()
    assert not [path for path in (tmp_path / "memories").rglob("*") if path.is_file()]
    start = classifier(ParallelSGD(), maxSeconds=0.0).fit(data)
    assert start.history == []
    assert str(start.summary).startswith(f"training rows     {ROWS}\n")


def test_line_search_without_a_step_warns(data):
    with pytest.warns(UserWarning, match="LBFGS stopped: .*line search"):
        fitted = rows.regressor(strategy=LBFGS(maxls=4), loss=misleading).fit(data)
    assert "stopped" in fitted.history[-1]["status"]


def test_ignored_params_are_warned_of(data):
    ignored = {"epochs": 3, "batchSize": 7, "maxRestarts": 5, "minWorkers": 1, "microBatches": 2, "maxGradNorm": 1.0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        classifier(LBFGS(l2=0.1), maxRounds=1, checkpointInterval=10, **ignored).fit(data)
    text = " ".join(str(warning.message) for warning in caught)
    for name in (*ignored, "optimizer", "checkpointInterval"):
        assert f"{name}=" in text
    assert "maxRounds=" not in text
    with pytest.warns(UserWarning, match="numWorkers=2 is ignored"):  # rows stay in their partitions
        fitted = classifier(ParallelSGD(rounds=1, shuffle=False)).fit(data.repartitionByRange(3, "row"))
    assert len(fitted.report["rows_by_part"]) == 3
