"""Generators resume from a state that was packed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from sparkdl.io.serialization import pack_state, unpack_state
from sparkdl.training.rng import random_state, set_random_state

HAS_GPU = torch.cuda.is_available()
GPU = pytest.param("cuda:0", marks=[pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")])


@pytest.mark.parametrize("before", range(3))
@pytest.mark.parametrize("device", ["cpu", GPU])
def test_generators_resume(request, before, device):
    """Of Gaussian numbers an odd count is drawn, as Python and numpy keep every second back."""

    def drawn() -> list[Any]:
        numbers = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3).tolist()]
        return [*numbers, torch.rand(5, device=device).tolist()]

    start = random_state()
    request.addfinalizer(lambda: set_random_state(start))
    for _ in range(before):
        drawn()
    state = random_state(torch.device(device))
    packed = pack_state(state)
    expected = [drawn(), drawn()]
    assert pack_state(state) == packed  # a copy
    set_random_state(unpack_state(packed), torch.device(device))
    assert [drawn(), drawn()] == expected
