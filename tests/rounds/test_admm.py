"""Consensus ADMM by itself: its identities, its residuals, and what it refuses."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.errors import InvalidInput
from sparkdl.objective import Objective
from sparkdl.rounds.admm import ConsensusADMM
from sparkdl.rounds.prox import L1
from sparkdl.rounds.run import Rounds
from sparkdl.rounds.solvers import Quadratic, Smooth, Steps
from tests.contracts.algorithm_contract import data, jobs, objective, parts_of, states


def matrices() -> tuple[np.ndarray, np.ndarray]:
    """``A`` and ``b`` of the mean loss ``x.A x / 2 - b.x``, of the weights and the bias."""
    arrays = data()
    rows, w = np.c_[arrays["x"], np.ones(len(arrays["y"]))], arrays["w"]
    return 2 * (rows * w[:, None]).T @ rows / w.sum(), 2 * (rows * w[:, None]).T @ arrays["y"] / w.sum()


def flat(state) -> np.ndarray:
    return torch.cat([state["weights"][name].flatten() for name in ("weight", "bias")]).numpy()


def test_one_part_is_the_proximal_point_algorithm():
    """z' = argmin f(x) + rho/2 ||x - z||^2: with one part, no penalty and no over-relaxation, u stays 0."""
    a, b = matrices()
    algorithm = ConsensusADMM(rho=0.7, solver=Quadratic(), alpha=1.0, adapt=0)
    _, *found = [flat(state) for state in states(algorithm, parts_of(90), 6)]
    for z, after in itertools.pairwise(found):
        assert np.allclose(after, np.linalg.solve(a + 0.7 * np.eye(5), b + 0.7 * z), atol=1e-10)


def test_rounds_are_those_of_the_equations():
    """Three parts with over-relaxation, a penalty, and a rho that changes, against numpy."""
    algorithm = ConsensusADMM(rho=4.0, solver=Quadratic(), prox=L1(0.2), balance=1.5)
    _, first, *others = states(algorithm, parts_of(20, 30, 40), 13)
    alpha = algorithm.alpha
    arrays = data()
    rows, y, w = np.c_[arrays["x"], np.ones(90)], arrays["y"], arrays["w"]
    cuts = [slice(0, 20), slice(20, 50), slice(50, 90)]
    a = [2 * (rows[cut] * w[cut, None]).T @ rows[cut] / w.sum() for cut in cuts]
    b = [2 * (rows[cut] * w[cut, None]).T @ y[cut] / w.sum() for cut in cuts]
    z, u, rho = flat(first), np.zeros((3, 5)), 4.0
    rhos = set()
    for state in others:
        r = rho / 3
        x = np.stack([np.linalg.solve(a[i] + r * np.eye(5), b[i] + r * (z - u[i])) for i in range(3)])
        h = alpha * x + (1 - alpha) * z
        before, z = z, (h + u).mean(0)
        z[:4] = np.sign(z[:4]) * np.maximum(np.abs(z[:4]) - 0.2 / rho, 0)  # the bias is not penalised
        u = u + h - z
        assert np.allclose(flat(state), z, atol=1e-9)
        assert state["row"]["primal"] == pytest.approx(np.linalg.norm(x - z), rel=1e-6)
        assert state["row"]["dual"] == pytest.approx(math.sqrt(3) * r * np.linalg.norm(z - before), rel=1e-6)
        u, rho = u * (rho / state["rho"]), state["rho"]
        rhos.add(rho)
    assert len(rhos) > 1


def test_the_first_round_weighs_the_rows_and_is_not_in_the_history():
    algorithm = ConsensusADMM()
    _, first, second = states(algorithm, parts_of(30, 30, 30), 2)
    assert algorithm.row(first) == {}
    assert first["mass"] == pytest.approx(data()["w"].sum())
    assert (first["parts"], first["round"]) == (3, 0)
    assert set(algorithm.row(second)) == {"primal", "dual", "rho"}


def test_a_part_without_rows_is_none_of_those_that_have_to_agree():
    algorithm = ConsensusADMM(solver=Quadratic())
    one, other = (states(algorithm, parts_of(*sizes), 6)[1:] for sizes in ((40, 50), (40, 50, 0)))
    assert [state["row"] for state in one] == [state["row"] for state in other]
    assert other[-1]["parts"] == 2


@pytest.mark.parametrize("solver", [Quadratic(), Smooth(), Smooth(reduction=0.9), Smooth(reduction=0)], ids=str)
def test_any_solver_comes_to_the_same(tmp_path, solver):
    algorithm = ConsensusADMM(solver=solver, absolute=1e-9, relative=1e-8)
    state, _ = Rounds(algorithm, objective(), memories=str(tmp_path), max_rounds=200).run(jobs(3))
    assert algorithm.done(state)
    assert np.allclose(flat(state), np.linalg.solve(*matrices()), atol=1e-6)


def test_quadratic_refuses_what_is_not(tmp_path):
    loss = Objective(partial(nn.Linear, 4, 1), nn.SmoothL1Loss(beta=0.01), precision="fp64")
    with pytest.raises(InvalidInput, match=r"part 0 in round 1: the loss is not quadratic .* solver=Smooth\(\)"):
        Rounds(ConsensusADMM(solver=Quadratic()), loss, memories=str(tmp_path), max_rounds=5).run(jobs(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConsensusADMM(rho=0), "rho=0; expected a number above 0"),
        (lambda: ConsensusADMM(rho=-1.0), "rho=-1.0; expected a number above 0"),
        (lambda: ConsensusADMM(rho=float("nan")), "rho=nan"),
        (lambda: ConsensusADMM(rho=float("inf")), "rho=inf"),
        (lambda: ConsensusADMM(alpha=2.0), "alpha=2.0; expected 1"),
        (lambda: ConsensusADMM(factor=0.5), "factor=0.5; expected at least 1"),
        (lambda: ConsensusADMM(relative=-1), "relative=-1; expected at least 0"),
        (lambda: Smooth(reduction=1.0), "reduction=1.0"),
        (lambda: Steps(epochs=0), "epochs=0; expected at least 1"),
        (lambda: Quadratic(tolerance=-1.0), "tolerance=-1.0"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()
