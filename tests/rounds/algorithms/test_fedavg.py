"""Federated averaging: the contract, its equations by hand, drawing of clients, buffers, and quantized updates."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from sparkdl.cluster.local_tasks import InlineTaskRunner, ShardedData
from sparkdl.data.columns import InputColumn
from sparkdl.data.sampler import generator
from sparkdl.errors import InvalidInput
from sparkdl.rounds.algorithms.fedavg import FederatedAveraging, packed, quantised, quantised_each
from sparkdl.rounds.evaluate import as_only_shard
from sparkdl.rounds.local_training import LocalTraining
from sparkdl.rounds.loop import Rounds
from sparkdl.rounds.parameters import module_of
from sparkdl.training.objective.objective import Objective
from tests.contracts import algorithm_contract, work
from tests.contracts.algorithm_contract import AlgorithmContract

SIZES = (3, 40, 11, 7, 25)  # rows of each client
IDS = (-4, 0, 9, 12, 1 << 40)
WEIGHED = replace(algorithm_contract.COLUMNS, row_id=InputColumn("id", "int64"))
COLUMNS = replace(WEIGHED, weight=None)
RATE = 0.05
SQUARES = Objective(partial(nn.Linear, 3, 1), nn.MSELoss(), partial(torch.optim.SGD, lr=RATE), precision="fp64")
ALL = partial(FederatedAveraging, "client", client_fraction=1.0)
FED_SGD = ALL(batch_size=1000)


class TestFederatedAveraging(AlgorithmContract):
    algorithm = FederatedAveraging("client", client_fraction=0.4, rounds=40, epochs=2, batch_size=2, prox_mu=0.01)


class TestMomentumAndFewBits(AlgorithmContract):
    algorithm = FederatedAveraging(
        "client", client_fraction=0.5, rounds=40, batch_size=2, momentum=0.5, learning_rate=0.5, quantize_bits=8
    )


def clients() -> list[pa.Table]:
    """A regression of five clients with different weights."""
    random = np.random.default_rng(5)
    tables = []
    for size, name in zip(SIZES, IDS, strict=True):
        x = random.normal(size=(size, 3))
        y = x @ random.normal(size=3) + 0.1 * random.normal(size=size)
        others = {"w": random.uniform(0, 3, size), "client": [name] * size, "id": np.arange(size) + 100 * len(tables)}
        tables.append(pa.table({"x": list(x), "y": y, **others}))
    return tables


def run(algorithm, rounds: int, *, tables=None, columns=COLUMNS, shards: int = 1, objective=SQUARES):
    """The state after averaging on mixed rows, and the history."""
    tables = tables or clients()
    joined = [pa.concat_tables(tables[shard::shards]) for shard in range(shards)]
    mixed = [table.take(np.random.default_rng(1).permutation(table.num_rows)) for table in joined]
    runner = InlineTaskRunner(ShardedData(mixed, columns, shards))
    return Rounds(replace(algorithm, rounds=rounds), objective, seed=3).run(runner)


def vector(weights) -> torch.Tensor:
    return torch.cat([weights["weight"].flatten(), weights["bias"]])


def initial() -> torch.Tensor:
    return vector(FED_SGD.init(SQUARES, 3)["weights"])


def gradient(w: torch.Tensor, tables: list[pa.Table], *, weighed: bool = False) -> tuple[torch.Tensor, float]:
    """Gradient of the mean squared error of all rows, and the error."""
    joined = pa.concat_tables(tables)
    x = np.stack(joined["x"].to_numpy())
    x, y = torch.tensor(np.hstack([x, np.ones((len(x), 1))])), torch.tensor(joined["y"].to_numpy())
    a = torch.tensor(joined["w"].to_numpy()) if weighed else torch.ones(len(y), dtype=torch.float64)
    errors = x @ w - y
    return 2 * x.T @ (a * errors) / a.sum(), float((a * errors**2).sum() / a.sum())


# ---- the equations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2, 5])
@pytest.mark.parametrize("columns", [COLUMNS, WEIGHED])
def test_one_step_per_client_is_gradient_descent_on_all_rows(shards, columns):
    state, history = run(FED_SGD, 4, columns=columns, shards=shards)
    w = initial()
    for row in history:
        g, error = gradient(w, clients(), weighed=columns is WEIGHED)
        assert row["clients"] == 5
        assert row["loss"] == pytest.approx(error, rel=1e-12)
        w = w - RATE * g
    assert torch.allclose(vector(state["weights"]), w, rtol=0, atol=1e-12)


def trained(table: pa.Table, client: int, rounds: int, *, epochs: int, batch_size: int) -> torch.Tensor:
    """Weights of the client's own training over several rounds."""
    (shard,) = ShardedData([table], COLUMNS, 1).shards()
    module = module_of(SQUARES, FED_SGD.init(SQUARES, 3)["weights"])
    for number in range(rounds):
        local = LocalTraining(epochs, batch_size, number, (3, client))
        local.train(SQUARES, module, as_only_shard(shard, SQUARES.criterion()))
    return vector(module.state_dict())


@pytest.mark.parametrize(("chosen", "rounds"), [(slice(1, 2), 3), (slice(None), 1)])
def test_round_is_mean_of_local_trainings_by_rows(chosen, rounds):
    state, _ = run(ALL(epochs=3, batch_size=4), rounds, tables=clients()[chosen])
    alone = [
        size * trained(table, name, rounds, epochs=3, batch_size=4)
        for size, table, name in zip(SIZES[chosen], clients()[chosen], IDS[chosen], strict=True)
    ]
    assert torch.allclose(vector(state["weights"]), sum(alone) / sum(SIZES[chosen]), rtol=0, atol=1e-13)


def test_shards_of_clients_make_no_difference():
    algorithm = ALL(epochs=2, batch_size=4, prox_mu=0.1, quantize_bits=8)
    one, other = (vector(run(algorithm, 2, shards=shards)[0]["weights"]) for shards in (1, 5))
    assert torch.allclose(one, other, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("beta", "eta", "mu"), [(0.0, 0.5, 0.0), (0.9, 1.0, 0.0), (0.7, 0.3, 0.0), (0.0, 1.0, 0.8)])
def test_server_velocity_and_proximal_term(beta, eta, mu):
    algorithm = ALL(batch_size=1000, epochs=2, momentum=beta, learning_rate=eta, prox_mu=mu)
    state, _ = run(algorithm, 5, shards=2)
    w, v = initial(), torch.zeros(4, dtype=torch.float64)
    for _ in range(5):
        d = torch.zeros_like(w)
        for size, table in zip(SIZES, clients(), strict=True):
            one = w - RATE * gradient(w, [table])[0]
            two = one - RATE * (gradient(one, [table])[0] + mu * (one - w))
            d += size / sum(SIZES) * (w - two)
        v = beta * v + d
        w = w - eta * v
    assert torch.allclose(vector(state["weights"]), w, rtol=0, atol=1e-12)
    assert torch.allclose(state["velocity"], v, rtol=0, atol=1e-12)


# ---- clients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fraction", "expected"), [(1e-9, 1), (0.2, 1), (0.6, 3), (1.0, 5)])
def test_fraction_of_clients_trains_and_at_least_one(fraction, expected):
    _, history = run(FederatedAveraging("client", client_fraction=fraction), 6, shards=2)
    assert [row["clients"] for row in history] == [expected] * 6


def test_every_client_is_drawn():
    algorithm = FederatedAveraging("client", client_fraction=0.2)
    state, _ = run(algorithm, 1, shards=2)
    drawn = set()
    for number in range(40):
        chosen = [(shard, each) for shard in range(2) for each in algorithm._chosen({**state, "round": number}, shard)]
        assert len(chosen) == 1
        drawn |= set(chosen)
    assert drawn == {(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)}


def test_diverging_client_is_named():
    wild = replace(SQUARES, optimizer=partial(torch.optim.SGD, lr=1e9))
    with pytest.raises(InvalidInput, match=rf"client {IDS[1]}: the loss is not finite; lower the learning rate"):
        run(ALL(epochs=400), 1, tables=clients()[1:2], objective=wild)


def test_tied_parameter_follows_server():
    """The other name of a tied parameter was averaged plainly, and on loading it overwrote the server's step."""
    minimised = replace(SQUARES, model=work.Tied)
    before = FED_SGD.init(minimised, 3)["weights"]
    state, _ = run(replace(FED_SGD, learning_rate=0.25), 1, objective=minimised)
    whole, _ = run(FED_SGD, 1, objective=minimised)
    assert "second.weight" not in state["weights"]
    for name, tensor in state["weights"].items():
        expected = before[name] + 0.25 * (whole["weights"][name] - before[name])
        assert torch.allclose(tensor, expected, rtol=0, atol=1e-13), name


class Counting(nn.Module):
    """Counts its rows in a non-persistent buffer, and scales its outputs by the count."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 1), nn.BatchNorm1d(3)
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.seen += len(x)
        return self.linear(self.norm(x)) * (1 + self.seen)


def test_buffers_are_reset_for_each_client_and_averaged():
    minimised = replace(SQUARES, model=Counting, optimizer=partial(torch.optim.SGD, lr=1e-5))
    algorithm = ALL(epochs=2, batch_size=1000)
    one, history = run(algorithm, 2, objective=minimised)
    other, _ = run(algorithm, 2, objective=minimised, shards=5)
    for name, tensor in one["weights"].items():
        assert torch.allclose(tensor, other["weights"][name], rtol=0, atol=1e-13), name
    means = [np.stack(table["x"].to_numpy()).mean(0) for table in clients()]
    expected = sum(size * mean for size, mean in zip(SIZES, means, strict=True)) / sum(SIZES)
    grown = 1 - 0.9**4  # running means begin at 0 and see four batches in two rounds
    assert torch.allclose(one["weights"]["norm.running_mean"], torch.tensor(expected) * grown, rtol=0, atol=1e-12)
    assert history[0]["bytes"] == 5 * (10 + 6) * 8  # 10 parameters and 6 numbers of buffers, 8 bytes each


# ---- quantization ----------------------------------------------------------------------------------------------------

each_width = pytest.mark.parametrize("bits", [1, 2, 3, 8, 16])


def values(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Numbers of both signs and several magnitudes."""
    return torch.randn(301, generator=generator(1), dtype=dtype) * torch.logspace(-3, 1, 301, dtype=dtype)


def step_of(exact: torch.Tensor, bits: int) -> float:
    return float(exact.max() - exact.min()) / (2**bits - 1)


@each_width
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_become_one_of_two_nearest_levels(bits, dtype):
    exact = values(dtype)
    rounded, step = quantised(exact, bits, generator(2)), step_of(exact, bits)
    slack = 8 * torch.finfo(dtype).eps * float(exact.abs().max())
    assert (rounded - exact).abs().max() < step + slack
    level = (rounded - exact.min()).double() / step
    assert (level - level.round()).abs().max() < 1e-3 * max(1, 2**bits / 256)
    assert exact.min() <= rounded.min()
    assert rounded.max() <= exact.max() + slack
    assert len(rounded.unique()) <= 2**bits
    assert rounded.dtype == dtype


@each_width
def test_quantization_is_unbiased(bits):
    exact, times, random = values(), 2000, generator(5)
    total = sum(quantised(exact, bits, random) for _ in range(times))
    # At a fraction p of the way between two levels, the variance is p (1 - p) step^2.
    share = ((exact - exact.min()) / step_of(exact, bits)).frac()
    deviation = (share * (1 - share) / times).sqrt() * step_of(exact, bits)
    assert bool(((total / times - exact).abs() <= 5 * deviation + 1e-9).all())


@pytest.mark.parametrize(("exact", "bits"), [([-1.0, 0.0, 1.0, 2.0], 2), ([3.25] * 7, 1), ([0.0], 1)])
def test_values_on_levels_stay(exact, bits):
    assert quantised(torch.tensor(exact), bits, generator(0)).tolist() == exact


def test_each_tensor_has_its_own_levels_and_never_grows():
    small, large = values() * 1e-6, values()
    rounded = quantised_each(torch.cat([small, large]), (301, 301), 8, generator(3))
    assert float((rounded[:301] - small).abs().max()) < step_of(small, 8) * 1.001
    assert float((rounded[301:] - large).abs().max()) < step_of(large, 8) * 1.001
    exact = torch.tensor([0.1, 0.2, 0.7])
    assert (packed(3, 4, 16), packed(2, 4, 1), packed(10, 4, 8), packed(10, 4, None)) == (12, 8, 18, 40)
    assert torch.equal(quantised_each(exact, (3,), 16, generator(0)), exact)
    assert not torch.equal(quantised_each(exact, (3,), 2, generator(0)), exact)


def test_random_numbers_do_not_depend_on_whether_another_tensor_is_constant():
    constant, other = torch.zeros(80), torch.linspace(0, 1, 80)
    noise = constant + 1e-20 * torch.rand(80, generator=generator(1))  # another device's rounding
    pairs = [torch.cat([one, other]) for one in (constant, noise)]
    exact, noisy = (quantised_each(flat, (80, 80), 4, generator(0))[80:] for flat in pairs)
    assert torch.equal(exact, noisy)


@pytest.mark.parametrize("bits", [None, 3, 16])
def test_bytes_and_bytes_saved(bits):
    """One round of a wide linear regression of six clients, in fp32."""
    x = np.random.default_rng(4).normal(size=(240, 30))
    y = x @ np.random.default_rng(5).normal(size=30)
    whole = pa.table({"x": list(x), "y": y, "client": np.arange(240) // 40, "id": np.arange(240)})
    objective = Objective(partial(nn.Linear, 30, 1), nn.MSELoss(), partial(torch.optim.SGD, lr=0.02))
    algorithm = FederatedAveraging("client", quantize_bits=bits, client_fraction=0.5, batch_size=8)
    columns = replace(COLUMNS, floating="float32")
    _, [row] = run(algorithm, 1, tables=[whole], columns=columns, objective=objective)
    weight = 30 * 4 if bits is None else math.ceil(30 * bits / 8) + 8
    assert row["clients"] == 3
    assert row["bytes"] == 3 * (weight + 4)  # one bias is sent without quantization
    assert row["bytes_saved"] == 3 * 31 * 4 - row["bytes"]
