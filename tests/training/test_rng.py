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
    """Numbers of every generator; of Gaussian ones an odd count, as Python and numpy keep every second back."""
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3).tolist()]


@pytest.fixture
def spared():
    before = random_state()
    yield
    set_random_state(before)


@pytest.mark.usefixtures("spared")
@pytest.mark.parametrize("before", range(3))
def test_generators_resume(before):
    for _ in range(before):
        drawn()
    state = random_state(torch.device("cpu"))
    packed = pack_state(state)
    expected = [drawn(), drawn()]
    assert pack_state(state) == packed  # a copy
    set_random_state(unpack_state(packed), torch.device("cpu"))
    assert [drawn(), drawn()] == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.usefixtures("spared")
def test_generator_of_gpu_resumes():
    device = torch.device("cuda", 0)
    packed = pack_state(random_state(device))
    expected = torch.rand(5, device=device)
    set_random_state(unpack_state(packed), device)
    assert torch.equal(torch.rand(5, device=device), expected)
