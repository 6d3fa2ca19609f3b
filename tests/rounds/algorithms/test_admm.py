"""Consensus ADMM: the contract, its equations in numpy, its residuals, solvers and penalties."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.local_solvers import ConjugateGradient, LocalSGDSolver, NewtonCG
from sparkdl.rounds.loop import Rounds
from sparkdl.rounds.prox import L1, L2, Box, ElasticNet, Prox, penalised
from tests.contracts.algorithm_contract import AlgorithmContract, data, jobs, objective, shards_of, states

SIZES = (20, 30, 40)


class TestExactSolver(AlgorithmContract):
    algorithm = ConsensusADMM(solver=ConjugateGradient(), prox=L2(1e-3))


class TestSmoothSolver(AlgorithmContract):
    algorithm = ConsensusADMM(solver=NewtonCG())


class TestInexactSolver(AlgorithmContract):
    algorithm = ConsensusADMM(solver=LocalSGDSolver(batch_size=4), adapt_rounds=0)


def matrices(rows: slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
    """``A`` and ``b`` of the rows' term ``x.A x / 2 - b.x`` of the mean loss, for the weights and the bias."""
    arrays = data()
    total = arrays["w"].sum()
    x, y, w = (each[rows] for each in (np.c_[arrays["x"], np.ones(90)], arrays["y"], arrays["w"]))
    return 2 * (x * w[:, None]).T @ x / total, 2 * (x * w[:, None]).T @ y / total


def flat(state) -> np.ndarray:
    return torch.cat([state["weights"][name].flatten() for name in ("weight", "bias")]).numpy()


def test_one_shard_is_proximal_point_algorithm():
    """z' = argmin f(x) + rho/2 ||x - z||^2: one shard without penalty, over-relaxation and momentum keeps u at 0."""
    algorithm = ConsensusADMM(rho=0.7, solver=ConjugateGradient(), adapt_rounds=0, accelerate=False)
    (a, b), (_, *consensus) = matrices(), map(flat, states(algorithm, shards_of(90), 6))
    for z, after in itertools.pairwise(consensus):
        assert np.allclose(after, np.linalg.solve(a + 0.7 * np.eye(5), b + 0.7 * z), atol=1e-10)


def test_shards_draw_different_random_numbers(monkeypatch):
    keys = []
    monkeypatch.setattr(NewtonCG, "solve", lambda solver, problem: keys.append(problem.key))
    states(ConsensusADMM(), shards_of(30, 30, 30), 2)
    assert keys == [(3, 0), (3, 1), (3, 2)]


def in_numpy(algorithm: ConsensusADMM, z: np.ndarray, rounds: int) -> Iterator[dict[str, Any]]:
    """The rounds on shards of these sizes; the bias, the last entry of ``z``, is not penalised."""
    ends = itertools.accumulate(SIZES)
    terms = [matrices(slice(end - size, end)) for end, size in zip(ends, SIZES, strict=True)]
    u, c, rho, t, least = np.zeros((3, 5)), z, algorithm.rho, 1.0, math.inf
    d = u
    for k in range(1, rounds + 1):
        r = rho / 3
        pairs = zip(terms, d, strict=True)
        x = np.stack([np.linalg.solve(a + r * np.eye(5), b + r * (c - own)) for (a, b), own in pairs])
        h = algorithm.alpha * x + (1 - algorithm.alpha) * c
        before, z = (z, u), (h + d).mean(0)
        z[:4] = np.sign(z[:4]) * np.maximum(np.abs(z[:4]) - algorithm.prox.strength / rho, 0)
        u = d + h - z
        primal, dual = np.linalg.norm(x - z), math.sqrt(3) * r * np.linalg.norm(z - c)
        size, dual_size = max(np.linalg.norm(x), math.sqrt(3) * np.linalg.norm(z)), r * np.linalg.norm(u)
        slack = math.sqrt(3 * 5) * algorithm.abs_tol
        over = primal <= slack + algorithm.rel_tol * size and dual <= slack + algorithm.rel_tol * dual_size
        ratio, change = primal / size / (dual / dual_size), 1.0
        if max(ratio, 1 / ratio) > algorithm.mu:
            change = algorithm.tau ** (math.copysign(1, math.log(ratio)) * min(1, (algorithm.adapt_rounds / k) ** 2))
        e = r * (np.linalg.norm(u - d) ** 2 + 3 * np.linalg.norm(z - c) ** 2)
        beta, restart = 0.0, t > 1
        least *= max(change, 1 / change)
        if change == 1 and algorithm.accelerate and e < 0.999 * least:
            after = (1 + math.sqrt(1 + 4 * t**2)) / 2
            beta, t, least, restart = (t - 1) / after, after, e, False
        else:
            t = 1.0
        c, d = z + beta * (z - before[0]), u + beta * (u - before[1])
        row = {"primal": primal, "dual": dual, "rho": rho}
        yield {"z": z, "over": over, "row": row, "rho": rho * change, "beta": beta, "restart": restart}
        u, d, rho = u / change, d / change, rho * change


@pytest.mark.parametrize(
    ("rho", "balance", "way", "alpha", "accelerate"),
    [(4.0, 1.2, -1, 1.6, False), (0.02, 1.2, 1, 1.6, False), (0.02, 1.5, 1, 1.0, True), (4.0, 5.0, -1, 1.2, True)],
)
def test_rounds_equal_equations(rho, balance, way, alpha, accelerate):
    """Three shards with a penalty, a rho that adapts ever less, over-relaxation and momentum."""
    options = {"mu": balance, "tau": 1.7, "adapt_rounds": 12, "abs_tol": 1e-3, "rel_tol": 1e-3}
    options |= {"alpha": alpha, "accelerate": accelerate}
    algorithm = ConsensusADMM(rho=rho, solver=ConjugateGradient(), prox=L1(0.2), **options)
    _, first, *others = states(algorithm, shards_of(*SIZES), 31)
    assert (algorithm.metrics(first), first["shards"], first["round"]) == ({}, 3, 0)  # this round weighs the rows
    assert first["mass"] == pytest.approx(data()["w"].sum())
    expected = list(in_numpy(algorithm, flat(first), 30))
    for state, wanted in zip(others, expected, strict=True):
        assert np.allclose(flat(state), wanted["z"], atol=1e-9)
        assert algorithm.metrics(state) == pytest.approx(wanted["row"], rel=1e-6)
        assert state["rho"] == pytest.approx(wanted["rho"], rel=1e-12)
        assert state["beta"] == pytest.approx(wanted["beta"], rel=1e-12)
        assert algorithm.converged(state) == wanted["over"]
    assert {each["over"] for each in expected} == {False, True}
    rhos = np.log([rho, *(state["rho"] for state in others)])
    assert way * (rhos[12] - rhos[0]) > 0
    assert any(each["beta"] > 0 for each in expected) == any(each["restart"] for each in expected) == accelerate


@pytest.mark.parametrize(
    ("solver", "prox"),
    [
        *((ConjugateGradient(), L2(0.5, penalize_bias=biases)) for biases in (False, True)),
        *((solver, None) for solver in (ConjugateGradient(), NewtonCG(), NewtonCG(0.9), NewtonCG(0))),
    ],
    ids=str,
)
def test_every_solver_converges_to_normal_equations(tmp_path, solver, prox):
    algorithm = ConsensusADMM(prox=prox, solver=solver, abs_tol=1e-9, rel_tol=1e-8)
    state, _ = Rounds(algorithm, objective(), memories=str(tmp_path), max_rounds=200).run(jobs(3))
    assert algorithm.converged(state)
    a, b = matrices()
    penalty = np.diag([0.5] * 4 + [0.5 * prox.penalize_bias]) if prox else 0
    assert np.allclose(flat(state), np.linalg.solve(a + penalty, b), atol=1e-7 if prox else 1e-6)


def test_shard_without_rows_is_outside_consensus():
    algorithm = ConsensusADMM(solver=ConjugateGradient())
    one, other = (states(algorithm, shards_of(*sizes), 6)[1:] for sizes in ((40, 50), (40, 50, 0)))
    assert [state["row"] for state in one] == [state["row"] for state in other]
    assert other[-1]["shards"] == 2


# ---- penalties -----------------------------------------------------------------------------------------------------

V = torch.tensor([-3.0, -0.4, 0.0, 0.2, 1.0, 5.0], dtype=torch.float64)
PENALTIES: dict[Prox, Callable[[torch.Tensor], torch.Tensor]] = {
    L1(0.7): lambda z: 0.7 * z.abs(),
    L2(0.7): lambda z: 0.7 / 2 * z.square(),
    ElasticNet(0.7, 0.3): lambda z: 0.7 * (0.3 * z.abs() + 0.7 / 2 * z.square()),
    ElasticNet(0.7, 1.0): lambda z: 0.7 * z.abs(),
    Box(-1.0, 0.5): lambda z: torch.where((z >= -1.0) & (z <= 0.5), 0.0, torch.inf),
    L1(0.0): torch.zeros_like,
}
"""Penalty -> its value, entry by entry."""


@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
@pytest.mark.parametrize("t", [0.1, 1.0, 3.0])
def test_prox_minimises_its_definition(penalty: Prox, t: float) -> None:
    def cost(x: torch.Tensor) -> torch.Tensor:
        return PENALTIES[penalty](x) + (x - V).square() / (2 * t)

    z = penalty.prox(V, t)
    for step in (-1e-1, -1e-3, -1e-5, 1e-5, 1e-3, 1e-1):
        assert bool((cost(z + step) >= cost(z) - 1e-15).all())


def test_biases_are_penalised_on_request() -> None:
    weights = {"0.weight": torch.zeros(3, 2), "0.bias": torch.zeros(3), "norm.weight": torch.zeros(3)}
    assert penalised(weights, biases=False) == {"0.weight": True, "0.bias": False, "norm.weight": False}
    assert all(penalised(weights, biases=True).values())
