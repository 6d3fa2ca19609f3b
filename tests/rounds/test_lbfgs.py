"""L-BFGS by itself: the recursion, the line search, and both on functions of a few numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sparkdl.rounds.lbfgs import two_loops
from sparkdl.rounds.line_search import C1, C2, Point, Search, begin, tell

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
        search = tell(search, Point(search.t, f(search.t), slope(search.t)), most=60)
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
        search = tell(search, Point(search.t, f(search.t), slope(search.t)))
    assert all(later < 10 for later in tried[1:])
    assert min(tried) < 0.5


def test_a_function_that_only_rises_fails() -> None:
    search = begin(Point(0.0, 0.0, -1.0), 1.0)
    while search.status == "searching":
        search = tell(search, Point(search.t, 1.0 + search.t, 1.0), most=10)
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
