"""The jobs of rounds on the digits, and the examples of rounds and of a user's own loop, to an accuracy."""

import json
import re
import runpy
import sys

import pytest
import yaml

from tests.cli.conftest import job as job
from tests.sessions import ROOT
from tests.training.test_digits import digits as digits
from tests.training.test_digits import words

pytestmark = pytest.mark.slow

BARS = {"parallel_sgd": 0.95, "admm": 0.94, "lbfgs": 0.94, "federated": 0.88}  # accuracy on the test rows
SHORTER = {  # settings on the command line: fewer rounds, and no more shards than slots
    "parallel_sgd": {"algorithm.rounds": 4, "estimator.numWorkers": 2},
    "admm": {"estimator.maxRounds": 10, "estimator.numWorkers": 2},
    "lbfgs": {"estimator.maxRounds": 25},
    "federated": {"algorithm.rounds": 8, "estimator.numWorkers": 2},
}


@pytest.mark.parametrize("name", BARS)
def test_job_trains_on_digits(digits, job, tmp_path, name):
    (kind, place), *_ = yaml.safe_load((ROOT / f"conf/rounds/{name}.yaml").read_text())["data"].items()
    places = {f"data.{kind}": place.replace("build/demo/data", str(digits)), "test.path": digits / "test"}
    places |= {"estimator.runDir": tmp_path / "run", "output": tmp_path / "model"}
    code, printed = job(name, *words(config=f"conf/rounds/{name}.yaml", **places, **SHORTER[name]))
    assert code == 0, printed
    assert float(re.search(r"held-out accuracy (\S+)", printed)[1]) >= BARS[name]
    rounds = len(json.loads((tmp_path / "run/history.json").read_text()))
    assert re.search(rf"^rounds +{rounds}$", printed, re.MULTILINE)
    assert (tmp_path / "model/metadata").exists()


@pytest.fixture
def example(spark, monkeypatch, capsys):
    """Run a program of examples/ on this session: its output."""
    monkeypatch.setattr(type(spark), "__exit__", lambda *_: None)

    def example(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(ROOT / f"examples/{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return example


def test_parallel_sgd_by_hand_and_by_sparkdl_agree(example):
    printed = example("plain_parallel_sgd")
    by_hand, ours = (float(result) for result in re.findall(r"accuracy (\S+)", printed))
    assert by_hand >= 0.93
    assert abs(by_hand - ours) <= 0.03
    assert printed.count("round ") == 5


def test_lasso_equals_scikit_learns(example):
    printed = example("admm_lasso", "--parts", "2")
    assert "stopped by Boyd's rule" in printed
    assert float(re.search(r"largest difference (\S+)", printed)[1]) < 1e-4


def test_own_loop_reaches_its_accuracy(example):
    printed = example("own_loop")
    rows = [int(number) for number in re.search(r"rows of each \w+: \[(.+)\]", printed)[1].split(",")]
    assert (len(rows), sum(rows)) == (2, 1437)
    assert float(re.search(r"accuracy (\S+)", printed)[1]) >= 0.95
