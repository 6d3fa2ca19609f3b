"""Consensus ADMM by itself: its identities, its residuals, and what it refuses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.errors import InvalidInput
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.local_solvers import ConjugateGradient, LocalSGDSolver, NewtonCG
from sparkdl.rounds.loop import Rounds
from sparkdl.rounds.prox import L1, L2
from sparkdl.training.objective import Objective
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
    algorithm = ConsensusADMM(rho=0.7, solver=ConjugateGradient(), alpha=1.0, adapt_rounds=0)
    _, *found = [flat(state) for state in states(algorithm, parts_of(90), 6)]
    for z, after in itertools.pairwise(found):
        assert np.allclose(after, np.linalg.solve(a + 0.7 * np.eye(5), b + 0.7 * z), atol=1e-10)


SIZES = (20, 30, 40)


def by_hand(algorithm: ConsensusADMM, z: np.ndarray, rounds: int) -> Iterator[dict[str, Any]]:
    """What rounds over parts of these sizes come to, in numpy; the bias, the last entry of ``z``, is not penalised."""
    arrays = data()
    rows, y, w = np.c_[arrays["x"], np.ones(90)], arrays["y"], arrays["w"]
    ends = itertools.accumulate(SIZES)
    cuts = [slice(end - size, end) for end, size in zip(ends, SIZES, strict=True)]
    a = [2 * (rows[cut] * w[cut, None]).T @ rows[cut] / w.sum() for cut in cuts]
    b = [2 * (rows[cut] * w[cut, None]).T @ y[cut] / w.sum() for cut in cuts]
    u, rho = np.zeros((3, 5)), algorithm.rho
    for number in range(rounds):
        r = rho / 3
        x = np.stack([np.linalg.solve(a[i] + r * np.eye(5), b[i] + r * (z - u[i])) for i in range(3)])
        h = algorithm.alpha * x + (1 - algorithm.alpha) * z
        before, z = z, (h + u).mean(0)
        z[:4] = np.sign(z[:4]) * np.maximum(np.abs(z[:4]) - algorithm.prox.strength / rho, 0)
        u = u + h - z
        primal, dual = np.linalg.norm(x - z), math.sqrt(3) * r * np.linalg.norm(z - before)
        size, dual_size = max(np.linalg.norm(x), math.sqrt(3) * np.linalg.norm(z)), r * np.linalg.norm(u)
        slack = math.sqrt(3 * 5) * algorithm.abs_tol
        over = primal <= slack + algorithm.rel_tol * size and dual <= slack + algorithm.rel_tol * dual_size
        found = {"z": z, "over": over, "row": {"primal": primal, "dual": dual, "rho": rho}}
        wanted = rho
        if primal / size > algorithm.mu * dual / dual_size:
            wanted = rho * algorithm.tau
        elif dual / dual_size > algorithm.mu * primal / size:
            wanted = rho / algorithm.tau
        after = wanted if number < algorithm.adapt_rounds else rho
        yield {**found, "wanted": wanted, "rho": after}
        u, rho = u * (rho / after), after


@pytest.mark.parametrize(("rho", "balance", "way"), [(4.0, 1.2, -1), (0.02, 1.2, 1), (0.02, 1.5, 1)])
def test_rounds_are_those_of_the_equations(rho, balance, way):
    """Three parts with over-relaxation, a penalty, and a rho that is balanced at first, against numpy."""
    options = {"mu": balance, "tau": 1.7, "adapt_rounds": 12, "abs_tol": 1e-3, "rel_tol": 1e-3}
    algorithm = ConsensusADMM(rho=rho, solver=ConjugateGradient(), prox=L1(0.2), **options)
    _, first, *others = states(algorithm, parts_of(*SIZES), 31)
    expected = list(by_hand(algorithm, flat(first), 30))
    for state, wanted in zip(others, expected, strict=True):
        assert np.allclose(flat(state), wanted["z"], atol=1e-9)
        assert algorithm.metrics(state) == pytest.approx(wanted["row"], rel=1e-6)
        assert state["rho"] == pytest.approx(wanted["rho"], rel=1e-12)
        assert algorithm.converged(state) == wanted["over"]
    assert {each["over"] for each in expected} == {False, True}
    rhos = [rho, *(state["rho"] for state in others)]
    assert way * math.log(rhos[12] / rhos[0]) > 0
    assert set(rhos[12:]) == {rhos[12]}
    assert any(each["wanted"] != each["rho"] for each in expected[12:])  # it is not constant because it is balanced


HUBER = Objective(partial(nn.Linear, 4, 1), nn.SmoothL1Loss(), precision="fp64")


@pytest.mark.parametrize(
    ("algorithm", "minimised"),
    [
        (ConsensusADMM(solver=ConjugateGradient(), prox=L1(0.05)), objective()),
        (ConsensusADMM(solver=ConjugateGradient(), adapt_rounds=0), objective()),
        (ConsensusADMM(solver=NewtonCG(), prox=L2(0.05)), HUBER),
    ],
    ids=["L1", "rho as it is", "Huber"],
)
def test_the_least_sum_of_both_residuals_falls(algorithm, minimised):
    """It may rise from one round to the next, but not over ten."""
    _, _, *others = states(algorithm, parts_of(*SIZES), 41, minimised)
    sums = [row["primal"] + row["dual"] for row in map(algorithm.metrics, others)]
    least = np.minimum.accumulate(sums)
    assert (least[10:] < least[:-10] / 2).all()


@pytest.mark.parametrize("biases", [False, True])
def test_a_penalty_is_on_biases_where_that_is_asked(tmp_path, biases):
    """Ridge regression, whose normal equations say what the minimum is."""
    a, b = matrices()
    algorithm = ConsensusADMM(
        prox=L2(0.5, penalize_bias=biases), solver=ConjugateGradient(), abs_tol=1e-10, rel_tol=1e-9
    )
    state, _ = Rounds(algorithm, objective(), memories=str(tmp_path), max_rounds=200).run(jobs(3))
    assert algorithm.converged(state)
    one, other = (np.linalg.solve(a + 0.5 * np.diag([1, 1, 1, 1, last]), b) for last in (biases, not biases))
    assert np.allclose(flat(state), one, atol=1e-7)
    assert not np.allclose(flat(state), other, atol=1e-3)


def test_the_first_round_weighs_the_rows_and_is_not_in_the_history():
    algorithm = ConsensusADMM()
    _, first, second = states(algorithm, parts_of(30, 30, 30), 2)
    assert algorithm.metrics(first) == {}
    assert first["mass"] == pytest.approx(data()["w"].sum())
    assert (first["parts"], first["round"]) == (3, 0)
    assert set(algorithm.metrics(second)) == {"primal", "dual", "rho"}


def test_a_part_without_rows_is_none_of_those_that_have_to_agree():
    algorithm = ConsensusADMM(solver=ConjugateGradient())
    one, other = (states(algorithm, parts_of(*sizes), 6)[1:] for sizes in ((40, 50), (40, 50, 0)))
    assert [state["row"] for state in one] == [state["row"] for state in other]
    assert other[-1]["parts"] == 2


@pytest.mark.parametrize(
    "solver", [ConjugateGradient(), NewtonCG(), NewtonCG(reduction=0.9), NewtonCG(reduction=0)], ids=str
)
def test_any_solver_comes_to_the_same(tmp_path, solver):
    algorithm = ConsensusADMM(solver=solver, abs_tol=1e-9, rel_tol=1e-8)
    state, _ = Rounds(algorithm, objective(), memories=str(tmp_path), max_rounds=200).run(jobs(3))
    assert algorithm.converged(state)
    assert np.allclose(flat(state), np.linalg.solve(*matrices()), atol=1e-6)


def test_quadratic_refuses_what_is_not(tmp_path):
    loss = Objective(partial(nn.Linear, 4, 1), nn.SmoothL1Loss(beta=0.01), precision="fp64")
    with pytest.raises(InvalidInput, match=r"shard 0 in round 1: the loss is not quadratic .* solver=NewtonCG\(\)"):
        Rounds(ConsensusADMM(solver=ConjugateGradient()), loss, memories=str(tmp_path), max_rounds=5).run(jobs(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConsensusADMM(rho=0), "rho=0; expected a number above 0"),
        (lambda: ConsensusADMM(rho=-1.0), "rho=-1.0; expected a number above 0"),
        (lambda: ConsensusADMM(rho=float("nan")), "rho=nan"),
        (lambda: ConsensusADMM(rho=float("inf")), "rho=inf"),
        (lambda: ConsensusADMM(alpha=2.0), "alpha=2.0; expected 1"),
        (lambda: ConsensusADMM(tau=0.5), "tau=0.5; expected at least 1"),
        (lambda: ConsensusADMM(rel_tol=-1), "rel_tol=-1; expected at least 0"),
        (lambda: NewtonCG(reduction=1.0), "reduction=1.0"),
        (lambda: LocalSGDSolver(epochs=0), "epochs=0; expected at least 1"),
        (lambda: ConjugateGradient(tolerance=-1.0), "tolerance=-1.0"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()
