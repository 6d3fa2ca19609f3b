"""The front door with algorithms of rounds: the same Params, history, model and ``transform`` as with a gang."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from sklearn.linear_model import LogisticRegression, Ridge
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import (
    L2,
    LBFGS,
    ConsensusADMM,
    ElasticNet,
    FederatedAveraging,
    ParallelSGD,
    TorchClassifier,
    TorchModel,
    TorchRegressor,
)
from sparkdl.cli.train import summary
from sparkdl.errors import InvalidInput
from sparkdl.rounds.local_solvers import ConjugateGradient, LocalSGDSolver
from tests.ml import nets
from tests.ml.descent import Descent
from tests.rounds.algorithms.test_lbfgs import misleading
from tests.sessions import frame

ROWS = 120
DRAW = np.random.default_rng(6)
X = DRAW.normal(size=(ROWS, 3))
ARRAYS = {
    "row": np.arange(ROWS),
    "x": X,
    "y": X @ [1.0, -2.0, 0.5] + 0.25 + 0.1 * DRAW.normal(size=ROWS),
    "label": (X @ [1.0, 1.0, -1.0] + DRAW.normal(size=ROWS) > 0).astype(np.float64),
    "held": np.arange(ROWS) % 4 == 0,
    "owner": np.arange(ROWS) % 7,
}
SGD = partial(torch.optim.SGD, lr=0.2)


@pytest.fixture(scope="module")
def data(spark):
    return frame(ARRAYS).cache()


def classifier(strategy, **given):
    defaults = {"model": nets.scores, "optimizer": SGD, "inputCols": ["x"], "numWorkers": 2, "idCol": "row"}
    if isinstance(strategy, LBFGS):
        del defaults["optimizer"]
    return TorchClassifier(**defaults | {"strategy": strategy} | given)


def weights(model):
    return {name: each.numpy() for name, each in model.module().state_dict().items()}


# ---- what comes of it ------------------------------------------------------------------------------------------------


@pytest.mark.cluster
@pytest.mark.parametrize(
    "strategy",
    [
        ParallelSGD(rounds=2, shard_batch_size=8),
        FederatedAveraging("owner", client_fraction=0.5, rounds=2, batch_size=4),
    ],
    ids=["parallel SGD", "federated averaging"],
)
def test_a_fit_has_history_report_and_a_model_that_is_saved(data, tmp_path, strategy):
    metrics = {"accuracy": MulticlassAccuracy(3, average="micro")}
    fitted = classifier(strategy, validationIndicatorCol="held", metrics=metrics, runDir=str(tmp_path / "run")).fit(
        data
    )
    assert [row["round"] for row in fitted.history] == [1, 2]
    assert {"loss", "valid_loss", "valid_accuracy", "seconds"} <= set(fitted.history[-1])
    assert fitted.report["rows"] == ROWS
    assert sum(fitted.report["rows_by_part"]) == ROWS
    assert json.loads((tmp_path / "run/history.json").read_text()) == fitted.history
    predictions = fitted.transform(data)
    assert predictions.count() == ROWS
    found = MulticlassClassificationEvaluator(metricName="accuracy").evaluate(predictions.where("held"))
    assert found == pytest.approx(fitted.history[-1]["valid_accuracy"])
    fitted.write().save(str(tmp_path / "model"))
    again = TorchModel.load(str(tmp_path / "model"))
    assert all(np.array_equal(weights(again)[name], each) for name, each in weights(fitted).items())


@pytest.mark.cluster
def test_lbfgs_finds_scikit_learns_optimum(data):
    fitted = classifier(LBFGS(l2=0.01, gtol=1e-9), model=nets.two_scores, precision="fp64").fit(data)
    reference = LogisticRegression(C=2 / (0.01 * ROWS), tol=1e-10, max_iter=1000).fit(X, ARRAYS["label"])
    found = weights(fitted)
    difference = found["weight"][1] - found["weight"][0]  # softmax of two is the logistic function of the difference
    np.testing.assert_allclose(difference, reference.coef_[0], atol=1e-5)


@pytest.mark.slow
@pytest.mark.cluster
def test_admm_finds_the_ridge_of_scikit_learn_and_goes_on_in_its_directory(data, tmp_path):
    admm = ConsensusADMM(rho=0.5, prox=L2(0.2), solver=ConjugateGradient(), abs_tol=1e-9, rel_tol=1e-9)
    given = {"model": nets.column, "inputCols": ["x"], "labelCol": "y", "numWorkers": 2, "precision": "fp64"}
    estimator = TorchRegressor(strategy=admm, runDir=str(tmp_path), idCol="row", maxRounds=3, **given)
    assert len(estimator.fit(data).history) == 3
    fitted = estimator.setMaxRounds(None).fit(data)
    assert [row["round"] for row in fitted.history] == list(range(1, len(fitted.history) + 1))
    reference = Ridge(alpha=0.1 * ROWS).fit(X, ARRAYS["y"])  # MSELoss has no half
    np.testing.assert_allclose(weights(fitted)["0.weight"][0], reference.coef_, atol=1e-6)
    assert fitted.history[-1]["primal"] < 1e-6
    with pytest.raises(InvalidInput, match="another run"):
        estimator.setStrategy(ConsensusADMM(rho=0.25, prox=L2(0.2), solver=ConjugateGradient())).fit(data)


@pytest.mark.cluster
@pytest.mark.slow
def test_more_rounds_go_on_and_a_search_tries_strategies(data, tmp_path):
    estimator = classifier(ParallelSGD(rounds=1), runDir=str(tmp_path))
    first = estimator.fit(data).history
    both = estimator.setStrategy(ParallelSGD(rounds=2)).fit(data).history
    assert both[0] == first[0]
    assert len(both) == 2
    grid = ParamGridBuilder().addGrid(estimator.strategy, [ParallelSGD(rounds=1), LBFGS(l2=0.1)]).build()
    search = CrossValidator(estimator=estimator, estimatorParamMaps=grid, numFolds=2, seed=1)
    assert len(search.setEvaluator(MulticlassClassificationEvaluator()).fit(data).avgMetrics) == 2


@pytest.mark.cluster
def test_an_algorithm_of_the_users_own(data, tmp_path):
    estimator = classifier(Descent(), model=nets.two_scores, runDir=str(tmp_path / "run"))
    losses = [row["loss"] for row in estimator.fit(data).history]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)
    longer = estimator.setStrategy(Descent(rounds=5)).fit(data)
    assert [row["loss"] for row in longer.history][:3] == losses


@pytest.mark.parametrize(
    "strategy",
    [ConsensusADMM(prox=ElasticNet(1e-3, 0.5), solver=LocalSGDSolver(batch_size=4)), LBFGS(l2=0.1), ParallelSGD()],
)
def test_an_estimator_is_saved_with_its_algorithm(spark, tmp_path, strategy):
    classifier(strategy, optimizer=torch.optim.SGD).write().save(str(tmp_path / "estimator"))
    assert TorchClassifier.load(str(tmp_path / "estimator")).getStrategy() == strategy


@pytest.mark.cluster
def test_nothing_is_kept_of_a_run_without_checkpoints(data, tmp_path):
    fitted = classifier(
        ConsensusADMM(), model=nets.two_scores, runDir=str(tmp_path), checkpointInterval="never", maxRounds=2
    ).fit(data)
    assert len(fitted.history) == 2
    assert not (tmp_path / "checkpoints").exists()
    assert not [path for path in (tmp_path / "memories").rglob("*") if path.is_file()]


@pytest.mark.cluster
def test_a_budget_that_is_over_at_once_leaves_the_start(data):
    fitted = classifier(ParallelSGD(), maxSeconds=0.0).fit(data)
    assert fitted.history == []
    assert f"trained on {ROWS} rows" in summary(fitted)


@pytest.mark.cluster
def test_a_line_search_that_finds_nothing_is_warned_of(data):
    with pytest.warns(UserWarning, match=r"LBFGS stopped: the line search has found no step.*best that were seen"):
        fitted = TorchRegressor(
            model=nets.column, inputCols=["x"], labelCol="y", strategy=LBFGS(maxls=4), loss=misleading
        ).fit(data)
    assert "stopped" in fitted.history[-1]["status"]


@pytest.mark.cluster
def test_rows_that_are_not_shuffled_stay_in_their_partitions(data):
    partitions = data.repartitionByRange(3, "row")
    with pytest.warns(UserWarning, match="numWorkers=2 is ignored"):
        fitted = classifier(ParallelSGD(rounds=1, shuffle=False)).fit(partitions)
    assert len(fitted.report["rows_by_part"]) == 3


# ---- what is refused, and what is warned of --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"device": "cuda"}, "device is 'cuda', and ParallelSGD runs in tasks on CPUs"),
        ({"precision": "bf16"}, "expected 'fp32' or 'fp64' with ParallelSGD"),
        (
            {"patience": 3, "strategy": ConsensusADMM()},
            "patience is 3, .* the history of ConsensusADMM has none; set validationIndicatorCol",
        ),
    ],
)
def test_what_rounds_cannot_do_is_refused_by_name(data, given, message):
    with pytest.raises(InvalidInput, match=message):
        classifier(**{"strategy": ParallelSGD()} | given).fit(data)


@dataclass
class Half:
    """All that an algorithm has, but for what it says of its steps."""

    init = map = reduce = apply = converged = metrics = print


@pytest.mark.parametrize("wrong", [Half(), LBFGS, "LBFGS", 3])
def test_what_is_no_algorithm_is_refused(wrong):
    with pytest.raises(InvalidInput, match=r"expected how replicas agree.*a dataclass with uses_optimizer, init, map"):
        TorchClassifier(strategy=wrong)


def test_a_client_column_that_is_not_there_is_refused(data):
    with pytest.raises(InvalidInput, match="writer"):
        classifier(FederatedAveraging("writer")).fit(data)


@pytest.mark.cluster
def test_params_that_rounds_make_no_use_of_are_warned_of_by_name(data):
    given = {
        "epochs": 3,
        "batchSize": 7,
        "maxRestarts": 5,
        "minWorkers": 1,
        "microBatches": 2,
        "checkpointInterval": 10,
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        classifier(LBFGS(l2=0.1), optimizer=SGD, maxGradNorm=1.0, maxRounds=1, **given).fit(data)
    text = " ".join(str(each.message) for each in caught)
    for name in (*given, "optimizer", "maxGradNorm"):
        assert f"{name}=" in text
    assert "maxRounds=" not in text
