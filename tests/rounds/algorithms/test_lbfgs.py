"""L-BFGS by itself: the recursion, the line search, and both on functions of a few numbers."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.rounds.algorithms.lbfgs import LBFGS, two_loops
from sparkdl.rounds.line_search import C1, C2, Point, Search, begin, observe
from sparkdl.rounds.loop import Round, Rounds
from sparkdl.rounds.parameters import flatten
from sparkdl.training.objective import Objective
from tests.contracts.algorithm_contract import InlineTaskRunner, data, jobs, objective, parts_of, states

FUNCTIONS = {
    "a parabola": (lambda t: (t - 1) ** 2, lambda t: 2 * (t - 1)),
    "far away": (lambda t: (t - 1e4) ** 2 / 1e4, lambda t: 2 * (t - 1e4) / 1e4),
    "near": (lambda t: (1e4 * t - 1) ** 2, lambda t: 2e4 * (1e4 * t - 1)),
    "a quartic": (lambda t: (t - 2) ** 4 - t, lambda t: 4 * (t - 2) ** 3 - 1),
    "a wall": (lambda t: -t if t < 0.5 else math.inf, lambda t: -1.0 if t < 0.3 else math.nan),
    "waves": (lambda t: math.sin(5 * t) - t + t * t / 10 + 1, lambda t: 5 * math.cos(5 * t) - 1 + t / 5),
    "exponential": (lambda t: math.exp(t) - 3 * t, lambda t: math.exp(t) - 3),
}


@pytest.mark.parametrize("first", [1e-6, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in ("waves", "a wall")])
def test_a_step_that_is_found_satisfies_the_conditions(name: str, first: float) -> None:
    f, slope = FUNCTIONS[name]
    start = Point(0.0, f(0.0), slope(0.0))
    search = begin(start, first)
    while search.status == "searching":
        search = Search.from_json(search.to_json())
        search = observe(search, Point(search.t, f(search.t), slope(search.t)), most=60)
    assert search.status == "found"
    assert f(search.t) <= start.value + C1 * search.t * start.slope
    assert abs(slope(search.t)) <= C2 * abs(start.slope)


def test_a_step_behind_a_wall_is_too_long() -> None:
    f, slope = FUNCTIONS["a wall"]
    search = begin(Point(0.0, 0.0, -1.0), 10.0)
    tried = []
    for _ in range(12):
        if search.status != "searching":
            break
        tried.append(search.t)
        search = observe(search, Point(search.t, f(search.t), slope(search.t)))
    assert all(later < 10 for later in tried[1:])
    assert min(tried) < 0.5


def test_a_function_that_only_rises_fails() -> None:
    search = begin(Point(0.0, 0.0, -1.0), 1.0)
    while search.status == "searching":
        search = observe(search, Point(search.t, 1.0 + search.t, 1.0), most=10)
    assert (search.status, search.low.t) == ("failed", 0.0)


def test_the_recursion_is_the_matrix() -> None:
    """H = (I - rho s y') H (I - rho y s') + rho s s', from gamma I."""
    random = np.random.default_rng(3)
    size, g = 6, torch.from_numpy(random.normal(size=6))
    pairs = []
    for _ in range(4):
        s = random.normal(size=size)
        pairs.append((s, s * random.uniform(0.5, 2.0, size)))
    s, y = pairs[-1]
    h = np.eye(size) * (s @ y) / (y @ y)
    for s, y in pairs:
        v = np.eye(size) - np.outer(y, s) / (y @ s)
        h = v.T @ h @ v + np.outer(s, s) / (y @ s)
    found = two_loops(g, [{"s": torch.from_numpy(s), "y": torch.from_numpy(y)} for s, y in pairs])
    assert np.allclose(found.numpy(), h @ g.numpy(), rtol=1e-12)
    assert torch.equal(two_loops(g, []), g)


def test_a_quadratic_takes_few_evaluations():
    """Five parameters: about as many steps, with one or two evaluations each."""
    algorithm = LBFGS(gtol=1e-8)
    state, history = Rounds(algorithm, objective()).run(jobs(3))
    assert history[-1]["status"].startswith("converged")
    assert len(history) < 20
    arrays = data()
    rows, w = np.c_[arrays["x"], np.ones(90)], np.sqrt(arrays["w"])
    expected = np.linalg.lstsq(rows * w[:, None], arrays["y"] * w, rcond=None)[0]
    assert np.allclose(flatten(state["weights"], state["names"]).numpy(), expected, atol=1e-7)


@pytest.mark.parametrize(("options", "last"), [({}, 0), ({"penalize_bias": False}, 0), ({"penalize_bias": True}, 1)])
def test_l2_is_on_biases_where_that_is_asked(options, last):
    """Ridge regression, whose normal equations say what the minimum is."""
    state, _ = Rounds(LBFGS(l2=0.5, gtol=1e-9, ftol=0.0, **options), objective()).run(jobs(3))
    arrays = data()
    rows, w = np.c_[arrays["x"], np.ones(90)], arrays["w"]
    a, b = 2 * (rows * w[:, None]).T @ rows / w.sum(), 2 * (rows * w[:, None]).T @ arrays["y"] / w.sum()
    one, other = (np.linalg.solve(a + 0.5 * np.diag([1, 1, 1, 1, each]), b) for each in (last, 1 - last))
    found = flatten(state["weights"], state["names"]).numpy()
    assert np.allclose(found, one, rtol=0, atol=1e-8)
    assert not np.allclose(found, other, rtol=0, atol=1e-3)


class Watched:
    """Jobs that note every point that was evaluated, and the mean loss there."""

    def __init__(self, inner: InlineTaskRunner) -> None:
        self.parts, self._inner, self.seen = inner.parts, inner, []

    def run(self, work, state, *, number=0):
        update, notes = self._inner.run(work, state, number=number)
        if isinstance(work, Round):
            self.seen.append((state["state"]["trial"], float(update["loss"]) / float(update["mass"])))
        return update, notes


@pytest.mark.parametrize("rounds", [3, 4, 5, 7, 10, 15, None])
@pytest.mark.parametrize("evaluations", [2, 25])
def test_the_weights_are_the_best_that_were_seen(rounds, evaluations):
    """Absolute errors have kinks, where no step satisfies the conditions; and a run may end within a search."""
    watched = Watched(jobs(2))
    kinked = Objective(partial(nn.Linear, 4, 1), nn.L1Loss(), precision="fp64")
    state, history = Rounds(LBFGS(maxls=evaluations), kinked, max_rounds=rounds).run(watched)
    best, value = min(watched.seen, key=lambda each: each[1])
    assert torch.equal(flatten(state["weights"], state["names"]), best)
    assert history[-1]["objective"] == value
    values = [row["objective"] for row in history]
    assert values == sorted(values, reverse=True)
    if rounds is None:
        status = history[-1]["status"]
        assert status.startswith(("stopped: the line search has found no step after", "converged: the last step"))
        assert any("the line search has found no step" in row.get("status", "") for row in history)


class Backwards(torch.autograd.Function):
    """The same, with the gradient of the opposite."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def misleading(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (Backwards.apply(output.squeeze(-1)) - target).square()


def test_a_search_that_finds_nothing_says_so_and_stops_where_it_began():
    wrong = Objective(partial(nn.Linear, 4, 1), misleading, precision="fp64")
    start = LBFGS().init(wrong, 0)["weights"]
    state, history = Rounds(LBFGS(maxls=9), wrong).run(jobs(2))
    assert history[-1]["status"] == (
        "stopped: the line search has found no step after 9 evaluations, along the gradient"
    )
    assert len(history) == 10
    assert all(torch.equal(state["weights"][name], tensor) for name, tensor in start.items())


def test_a_step_that_is_too_long_is_no_reason_to_give_up():
    """Its loss is infinite in one of the parts."""
    algorithm, parts = LBFGS(), parts_of(45, 45)
    first, second = states(algorithm, parts, 1)
    far = {**second, "trial": second["trial"] + 1e200}
    updates = [algorithm.map(objective(), far, part, None)[0] for part in parts]
    after = algorithm.apply(far, algorithm.reduce(*updates))
    assert not algorithm.converged(after)
    assert after["best"]["value"] == second["best"]["value"]
    assert 0 < Search.from_json(after["search"]).t < Search.from_json(second["search"]).t
    assert all(torch.equal(after["weights"][name], tensor) for name, tensor in first["weights"].items())
