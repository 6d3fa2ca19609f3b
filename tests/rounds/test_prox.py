"""Proximal operators against their definition."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sparkdl.rounds.prox import L1, L2, Box, ElasticNet, Prox, penalised

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
