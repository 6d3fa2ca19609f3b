"""What the version before this one saved loads: modules have moved since, and files name them as they were.

``earlier_version/make.py`` made the files, with that version.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from sparkdl import EMA, TorchClassifier, TorchModel, load_predictor
from sparkdl.errors import InvalidInput
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


def test_unfinished_run_of_an_earlier_format_raises(rows, tmp_path):
    shutil.copytree(FOLDER / "run", tmp_path / "run")
    with pytest.raises(InvalidInput, match=r"the saved state has format 6; this version of sparkdl reads 7\. Resume"):
        classifier(str(tmp_path / "run"), epochs=4).fit(rows)


def test_each_moved_module_exists():
    for module in MOVED.values():
        __import__(module)
