"""Generators resume from a state that was packed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from sparkdl.io.serialization import pack_state, unpack_state
from sparkdl.training.rng import random_state, set_random_state


def drawn() -> list[Any]:
    """Some numbers from every generator; an odd number of Gaussian ones, of which Python and numpy keep one back."""
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3).tolist()]


@pytest.fixture
def spared():
    """Put the generators back afterwards."""
    before = random_state()
    yield
    set_random_state(before)


@pytest.mark.usefixtures("spared")
@pytest.mark.parametrize("before", range(3))
def test_generators_go_on_where_they_were(before):
    for _ in range(before):
        drawn()
    packed = pack_state(random_state(torch.device("cpu")))
    expected = [drawn(), drawn()]
    set_random_state(unpack_state(packed), torch.device("cpu"))
    assert [drawn(), drawn()] == expected


@pytest.mark.usefixtures("spared")
def test_a_state_does_not_change_with_the_generators():
    state = random_state()
    packed = pack_state(state)
    drawn()
    assert pack_state(state) == packed
    assert pack_state(random_state()) != packed


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.usefixtures("spared")
def test_a_gpus_generator_goes_on_where_it_was():
    device = torch.device("cuda", 0)
    packed = pack_state(random_state(device))
    expected = torch.rand(5, device=device)
    set_random_state(unpack_state(packed), device)
    assert torch.equal(torch.rand(5, device=device), expected)
