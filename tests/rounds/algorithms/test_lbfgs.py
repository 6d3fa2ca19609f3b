"""L-BFGS: the contract, the recursion, the line search, and the best point of a run."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.rounds.algorithms.lbfgs import LBFGS, two_loops
from sparkdl.rounds.line_search import C1, C2, LineSearch, SearchPoint, begin, observe
from sparkdl.rounds.loop import Round, Rounds
from sparkdl.rounds.parameters import flatten
from tests.contracts.algorithm_contract import (
    AlgorithmContract,
    InlineTaskRunner,
    jobs,
    objective,
    shards_of,
    states,
)
from tests.rounds.algorithms.test_admm import matrices


class TestLBFGS(AlgorithmContract):
    algorithm = LBFGS(l2=1e-3)


# Each is a function and its slope.
FUNCTIONS = {
    "parabola": (lambda t: (t - 1) ** 2, lambda t: 2 * (t - 1)),
    "far": (lambda t: (t - 1e4) ** 2 / 1e4, lambda t: 2 * (t - 1e4) / 1e4),
    "near": (lambda t: (1e4 * t - 1) ** 2, lambda t: 2e4 * (1e4 * t - 1)),
    "quartic": (lambda t: (t - 2) ** 4 - t, lambda t: 4 * (t - 2) ** 3 - 1),
    "exponential": (lambda t: math.exp(t) - 3 * t, lambda t: math.exp(t) - 3),
}


def searched(f, slope, search: LineSearch, most: int) -> tuple[LineSearch, list[float]]:
    """The search after its end, and the steps that it tried."""
    tried = []
    while search.status == "searching":
        tried.append(search.t)
        point = SearchPoint(search.t, f(search.t), slope(search.t))
        search = observe(LineSearch.from_json(asdict(search)), point, most=most)
    return search, tried


@pytest.mark.parametrize("first", [1e-6, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_found_step_satisfies_wolfe_conditions(name: str, first: float) -> None:
    f, slope = FUNCTIONS[name]
    start = SearchPoint(0.0, f(0.0), slope(0.0))
    search, _ = searched(f, slope, begin(start, first), 60)
    assert search.status == "found"
    assert f(search.t) <= start.value + C1 * search.t * start.slope
    assert abs(slope(search.t)) <= C2 * abs(start.slope)


def test_infinite_values_shorten_step() -> None:
    _, tried = searched(
        lambda t: -t if t < 0.5 else math.inf,
        lambda t: -1.0 if t < 0.3 else math.nan,
        begin(SearchPoint(0.0, 0.0, -1.0), 10.0),
        12,
    )
    assert all(later < 10 for later in tried[1:])
    assert min(tried) < 0.5


def test_search_along_rising_function_fails() -> None:
    search, _ = searched(lambda t: 1.0 + t, lambda t: 1.0, begin(SearchPoint(0.0, 0.0, -1.0), 1.0), 10)
    assert (search.status, search.low.t) == ("failed", 0.0)


def test_recursion_equals_its_matrix() -> None:
    """H = (I - rho s y') H (I - rho y s') + rho s s', from gamma I."""
    random = np.random.default_rng(3)
    size, g = 6, torch.from_numpy(random.normal(size=6))
    steps = random.normal(size=(4, size))
    pairs = [(s, s * random.uniform(0.5, 2.0, size)) for s in steps]
    s, y = pairs[-1]
    h = np.eye(size) * (s @ y) / (y @ y)
    for s, y in pairs:
        v = np.eye(size) - np.outer(y, s) / (y @ s)
        h = v.T @ h @ v + np.outer(s, s) / (y @ s)
    product = two_loops(g, [{"s": torch.from_numpy(s), "y": torch.from_numpy(y)} for s, y in pairs])
    assert np.allclose(product.numpy(), h @ g.numpy(), rtol=1e-12)
    assert torch.equal(two_loops(g, []), g)


@pytest.mark.parametrize("bias", [None, False, True])
@pytest.mark.parametrize("l2", [0.0, 0.5])
def test_quadratic_converges_to_normal_equations_in_few_evaluations(l2, bias):
    options = {} if bias is None else {"penalize_bias": bias}
    state, history = Rounds(LBFGS(3, l2=l2, gtol=1e-9, ftol=0.0, **options), objective()).run(jobs(3))
    assert history[-1]["status"].startswith("converged")
    assert len(history) < 20
    assert len(state["pairs"]) == 3
    a, b = matrices()
    expected = np.linalg.solve(a + l2 * np.diag([1, 1, 1, 1, float(bool(bias))]), b)
    assert np.allclose(flatten(state["weights"], state["names"]).numpy(), expected, rtol=0, atol=1e-8)


class Watched:
    """Runs jobs and records each evaluated point and the mean loss there."""

    def __init__(self, inner: InlineTaskRunner) -> None:
        self.shard_rows, self._inner, self.seen = inner.shard_rows, inner, []

    def run(self, work, state, *, number=0):
        update, notes = self._inner.run(work, state, number=number)
        if isinstance(work, Round):
            self.seen.append((state["state"]["trial"], float(update["loss"]) / float(update["denominator"])))
        return update, notes


@pytest.mark.parametrize("rounds", [3, 5, 10, None])
@pytest.mark.parametrize("evaluations", [2, 25])
def test_weights_are_best_evaluated_point(rounds, evaluations):
    """At kinks of absolute errors no step satisfies the conditions, and a run may end within a search."""
    watched = Watched(jobs(2))
    kinked = replace(objective(), loss=nn.L1Loss())
    state, history = Rounds(LBFGS(maxls=evaluations), kinked, max_rounds=rounds).run(watched)
    best, value = min(watched.seen, key=lambda each: each[1])
    assert torch.equal(flatten(state["weights"], state["names"]), best)
    values = [row["objective"] for row in history]
    assert values == sorted(values, reverse=True)
    assert values[-1] == value
    if rounds is None:
        status = history[-1]["status"]
        assert status.startswith(("stopped: the line search has found no step after", "converged: the last step"))
        assert any("the line search has found no step" in row.get("status", "") for row in history)


def misleading(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Squared errors with the opposite gradient."""
    output = output.squeeze(-1)
    return (2 * output.detach() - output - target).square()


def test_search_without_result_stops_at_start():
    wrong = replace(objective(), loss=misleading)
    start = LBFGS().init(wrong, 0)["weights"]
    state, history = Rounds(LBFGS(maxls=9), wrong).run(jobs(2))
    expected = "stopped: the line search has found no step after 9 evaluations, along the gradient"
    assert history[-1]["status"] == expected
    assert len(history) == 10
    assert all(torch.equal(state["weights"][name], tensor) for name, tensor in start.items())


def test_step_of_infinite_loss_is_shortened():
    """The loss is infinite on one of the shards."""
    algorithm, shards = LBFGS(), shards_of(45, 45)
    first, second = states(algorithm, shards, 1)
    far = {**second, "trial": second["trial"] + 1e200}
    updates = [algorithm.map(objective(), far, shard, None)[0] for shard in shards]
    after = algorithm.apply(far, algorithm.reduce(*updates))
    assert not algorithm.converged(after)
    assert after["best"]["value"] == second["best"]["value"]
    assert 0 < LineSearch.from_json(after["search"]).t < LineSearch.from_json(second["search"]).t
    assert all(torch.equal(after["weights"][name], tensor) for name, tensor in first["weights"].items())
