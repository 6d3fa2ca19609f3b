"""What the version before this one saved loads and resumes: modules have moved since, and files name them as they were.

``earlier_version/make.py`` made the files, with that version.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from sparkdl import EMA, TorchClassifier, TorchModel, load_predictor
from sparkdl.io.moved_modules import MOVED
from tests.ml.earlier_version.make import classifier, examples
from tests.sessions import frame

FOLDER = Path(__file__).with_name("earlier_version")
EXPECTED = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def rows(spark):
    return frame(examples())


def test_model_gives_its_scores(rows):
    x = examples()["features"]
    weights = {name: np.float32(values) for name, values in EXPECTED["weights"].items()}
    scores = x @ weights["weight"].T + weights["bias"]
    model = TorchModel.load(str(FOLDER / "model"))
    given = np.array([row.rawPrediction.toArray() for row in model.transform(rows).orderBy("id").collect()])
    np.testing.assert_allclose(given, scores, rtol=1e-5, atol=1e-6)
    alone = load_predictor(str(FOLDER / "model")).predict(x)
    np.testing.assert_allclose(np.array(alone["rawPrediction"].tolist()), scores, rtol=1e-5, atol=1e-6)


def test_estimator_has_its_values_and_pickled_callback(spark):
    estimator = TorchClassifier.load(str(FOLDER / "estimator"), trust=True)
    (average,) = estimator.getCallbacks()
    assert (type(average), average.decay) == (EMA, 0.5)
    assert type(estimator.getLoss()) is torch.nn.CrossEntropyLoss
    assert list(estimator.getMetrics()) == ["accuracy"]


def test_unfinished_run_resumes(rows, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(FOLDER / "run", run)
    model = classifier(str(run), epochs=4).fit(rows)
    assert model.report["restarts"] == 1
    assert [row["step"] for row in model.history] == [row["step"] for row in EXPECTED["history"]]
    for row, other in zip(model.history, EXPECTED["history"], strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-5)
    for name, values in EXPECTED["weights"].items():
        torch.testing.assert_close(model.module().state_dict()[name], torch.tensor(values))


def test_each_moved_module_exists():
    for module in MOVED.values():
        __import__(module)
