"""The jobs of rounds with their configurations, by ``spark-submit``; and the examples of rounds."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys

import pytest
import yaml

from sparkdl import LBFGS, ConsensusADMM, ElasticNet, FederatedAveraging, ParallelSGD, TorchClassifier
from sparkdl.cli import app, train
from sparkdl.rounds.local_solvers import NewtonCG
from tests.sessions import ROOT, driver_environment
from tests.training.test_digits import digits as digits
from tests.training.test_digits import finish, submit

BARS = {"parallel_sgd": 0.95, "admm": 0.94, "lbfgs": 0.94, "federated": 0.88}  # held-out accuracy


@pytest.mark.parametrize("name", BARS)
def test_a_configuration_describes_its_algorithm(nets, name):
    made = {}

    @functools.wraps(getattr(train, name))
    def job(**given):
        made.update(given)

    assert app.main(job, ["--config", str(ROOT / f"conf/rounds/{name}.yaml")]) == 0
    expected = {
        "parallel_sgd": ParallelSGD(rounds=10, epochs=2),
        "admm": ConsensusADMM(rho=0.1, rel_tol=1e-3, prox=ElasticNet(1e-3), solver=NewtonCG(iterations=20)),
        "lbfgs": LBFGS(l2=1e-3, gtol=1e-4),
        "federated": FederatedAveraging("client", client_fraction=0.25, rounds=15, epochs=3, batch_size=16),
    }
    assert made["algorithm"] == expected[name]
    assert isinstance(made["estimator"], TorchClassifier)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", BARS)
def test_a_job_trains_on_digits(digits, tmp_path, name):
    data = yaml.safe_load((ROOT / f"conf/rounds/{name}.yaml").read_text())["data"]
    (kind, place) = data.popitem()
    places = {
        f"data.{kind}": place.replace("build/demo/data", str(digits)),
        "test.path": digits / "test",
        "estimator.runDir": tmp_path / "run",
        "output": tmp_path / "model",
    }
    changes = [word for key, value in places.items() for word in (f"--{key}", value)]
    said, code = finish(submit(name, "--config", f"conf/rounds/{name}.yaml", *changes, local=tmp_path / "local"))
    assert code == 0, said
    assert float(re.search(r"held-out accuracy (\S+)", said)[1]) >= BARS[name]
    history = json.loads((tmp_path / "run/history.json").read_text())
    assert f"{len(history)} rounds: " in said
    assert (tmp_path / "model/metadata").exists()


def example(name, folder, *arguments):
    ended = subprocess.run(
        [sys.executable, f"examples/{name}.py", *arguments],
        cwd=ROOT,
        env=driver_environment(folder) | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_parallel_sgd_by_hand_and_by_the_library_agree(tmp_path):
    said = example("plain_parallel_sgd", tmp_path)
    by_hand, ours = (float(found) for found in re.findall(r"accuracy (\S+)", said))
    assert by_hand >= 0.93
    assert abs(by_hand - ours) <= 0.03
    assert said.count("round ") == 5


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_lasso_is_scikit_learns(tmp_path):
    said = example("admm_lasso", tmp_path, "--parts", "3")
    assert "stopped by Boyd's rule" in said
    assert float(re.search(r"largest difference (\S+)", said)[1]) < 1e-4
