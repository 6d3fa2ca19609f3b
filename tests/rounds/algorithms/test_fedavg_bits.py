"""What clients send in few bits."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.cluster.local_tasks import InlineTaskRunner, dealt
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.sampler import generator
from sparkdl.rounds.algorithms.fedavg import FederatedAveraging
from sparkdl.rounds.loop import Rounds
from sparkdl.rounds.quantization import packed, quantised, quantised_each
from sparkdl.training.objective import Objective

each_width = pytest.mark.parametrize("bits", [1, 2, 3, 8, 16])
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def values(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Numbers of both signs and several magnitudes."""
    return torch.randn(301, generator=generator(1), dtype=dtype) * torch.logspace(-3, 1, 301, dtype=dtype)


def step_of(given: torch.Tensor, bits: int) -> float:
    return float(given.max() - given.min()) / (2**bits - 1)


@each_width
@each_dtype
def test_values_come_to_one_of_the_two_levels_beside_them(bits, dtype):
    given = values(dtype)
    found, step = quantised(given, bits, generator(2)), step_of(given, bits)
    assert found.dtype == dtype
    slack = 8 * torch.finfo(dtype).eps * float(given.abs().max())
    assert float((found - given).abs().max()) < step + slack
    level = (found - given.min()).double() / step
    assert float((level - level.round()).abs().max()) < 1e-3 * max(1, 2**bits / 256)
    assert float(found.min()) >= float(given.min())
    assert float(found.max()) <= float(given.max()) + slack
    assert len(found.unique()) <= 2**bits


@each_width
def test_the_mean_stays(bits):
    given, times = values(), 2000
    random = generator(5)
    total = sum(quantised(given, bits, random) for _ in range(times))
    # A number p of the way between two levels has a variance of p (1 - p) step^2.
    share = ((given - given.min()) / step_of(given, bits)).frac()
    deviation = (share * (1 - share) / times).sqrt() * step_of(given, bits)
    assert bool(((total / times - given).abs() <= 5 * deviation + 1e-9).all())


def test_what_lies_on_a_level_stays():
    given = torch.tensor([-1.0, 0.0, 1.0, 2.0])
    assert torch.equal(quantised(given, 2, generator(0)), given)
    assert torch.equal(quantised(torch.full((7,), 3.25), 1, generator(0)), torch.full((7,), 3.25))
    assert torch.equal(quantised(torch.zeros(1), 1, generator(0)), torch.zeros(1))


def test_each_tensor_has_levels_of_its_own():
    small, large = values() * 1e-6, values()
    found = quantised_each(torch.cat([small, large]), (301, 301), 8, generator(3))
    assert float((found[:301] - small).abs().max()) < step_of(small, 8) * 1.001
    assert float((found[301:] - large).abs().max()) < step_of(large, 8) * 1.001


def test_a_tensor_that_would_take_no_fewer_bytes_is_sent_as_it_is():
    given = torch.tensor([0.1, 0.2, 0.7])
    assert (packed(3, 4, 16), packed(2, 4, 1), packed(10, 4, 8), packed(10, 4, None)) == (12, 8, 18, 40)
    assert torch.equal(quantised_each(given, (3,), 16, generator(0)), given)
    assert not torch.equal(quantised_each(given, (3,), 2, generator(0)), given)


COLUMNS = Columns((InputColumn("x"),), InputColumn("y"), client=InputColumn("client", "int64"))


def run(bits: int | None, **options):
    """A wide linear regression of six clients, in fp32."""
    random = np.random.default_rng(4)
    x = random.normal(size=(240, 30))
    data = {"x": x, "y": x @ random.normal(size=30), "client": np.arange(240) // 40}
    objective = Objective(partial(nn.Linear, 30, 1), nn.MSELoss(), partial(torch.optim.SGD, lr=0.02))
    algorithm = FederatedAveraging(
        "client", quantize_bits=bits, **{"client_fraction": 0.5, "rounds": 30, "batch_size": 8, **options}
    )
    state, history = Rounds(algorithm, objective).run(InlineTaskRunner(dealt(data, COLUMNS, 2)))
    return state, [row for row in history if "loss" in row]


@each_width
def test_bytes_and_bytes_saved(bits):
    _, history = run(bits, rounds=1)
    whole, weight = 31 * 4, math.ceil(30 * bits / 8) + 8
    assert history[0]["clients"] == 3
    assert history[0]["bytes"] == 3 * (weight + 4)  # one bias is sent as it is
    assert history[0]["bytes_saved"] == 3 * whole - history[0]["bytes"]


def test_nothing_is_saved_without_bits():
    _, history = run(None, rounds=1)
    assert (history[0]["bytes"], history[0]["bytes_saved"]) == (3 * 31 * 4, 0)


def test_a_run_in_8_bits_learns_what_one_in_32_does():
    whole, _ = run(None)
    few, history = run(8)
    assert history[-1]["loss"] < 1e-2 * history[0]["loss"]
    assert torch.allclose(few["weights"]["weight"], whole["weights"]["weight"], atol=0.02)
    assert not torch.equal(few["weights"]["weight"], whole["weights"]["weight"])
