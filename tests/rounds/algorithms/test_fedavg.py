"""Federated averaging is what its equations say, with numbers worked out beside it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from sparkdl.cluster.local_tasks import InlineTaskRunner, dealt
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.rounds.algorithms.fedavg import FederatedAveraging
from sparkdl.rounds.evaluate import as_only_shard
from sparkdl.rounds.local_training import Local
from sparkdl.rounds.loop import Rounds
from sparkdl.rounds.parameters import module_of
from sparkdl.training.objective import Objective

SIZES = (3, 40, 11, 7, 25)  # rows of each client
IDS = (-4, 0, 9, 12, 1 << 40)
COLUMNS = Columns(
    (InputColumn("x"),),
    InputColumn("y"),
    row_id=InputColumn("id", "int64"),
    client=InputColumn("client", "int64"),
    floating="float64",
)
WEIGHED = replace(COLUMNS, weight=InputColumn("w"))
RATE = 0.05


def clients() -> list[pa.Table]:
    """A regression of five clients, each of whom has other weights."""
    random = np.random.default_rng(5)
    found = []
    for size, name in zip(SIZES, IDS, strict=True):
        x = random.normal(size=(size, 3))
        y = x @ random.normal(size=3) + 0.1 * random.normal(size=size)
        others = {"w": random.uniform(0, 3, size), "client": [name] * size, "id": np.arange(size) + 100 * len(found)}
        found.append(pa.table({"x": list(x), "y": y, **others}))
    return found


def objective(rate: float = RATE, **options: object) -> Objective:
    """Squared errors of a linear model, by plain SGD in fp64."""
    optimizer = partial(torch.optim.SGD, lr=rate)
    return Objective(partial(nn.Linear, 3, 1), nn.MSELoss(), optimizer, precision="fp64", **options)


def jobs(tables: list[pa.Table], columns: Columns = COLUMNS, parts: int = 1) -> InlineTaskRunner:
    """The clients in so many parts, mixed up within a part."""
    joined = [pa.concat_tables(tables[part::parts]) for part in range(parts)]
    mixed = [table.take(np.random.default_rng(1).permutation(table.num_rows)) for table in joined]
    return InlineTaskRunner(dealt(mixed, columns, parts))


def run(algorithm: FederatedAveraging, tables: list[pa.Table], rounds: int, **options: object):
    """The state after so many rounds of averaging, and the history without the round that counts."""
    given = {"columns": COLUMNS, "parts": 1, "objective": objective(), **options}
    columns, parts, minimised = given["columns"], given["parts"], given["objective"]
    state, history = Rounds(replace(algorithm, rounds=rounds), minimised, seed=3).run(jobs(tables, columns, parts))
    return state, [row for row in history if "loss" in row]


def vector(weights) -> torch.Tensor:
    return torch.cat([weights["weight"].flatten(), weights["bias"]])


def initial() -> torch.Tensor:
    return vector(FederatedAveraging("client").init(objective(), 3)["weights"])


def gradient(w: torch.Tensor, tables: list[pa.Table], *, weighed: bool = False) -> torch.Tensor:
    """Of the mean squared error of all rows, by hand."""
    joined = pa.concat_tables(tables)
    x = np.stack(joined["x"].to_numpy())
    x, y = torch.tensor(np.hstack([x, np.ones((len(x), 1))])), torch.tensor(joined["y"].to_numpy())
    a = torch.tensor(joined["w"].to_numpy()) if weighed else torch.ones(len(y), dtype=torch.float64)
    return 2 * x.T @ (a * (x @ w - y)) / a.sum()


FED_SGD = FederatedAveraging("client", client_fraction=1.0, batch_size=1000)


# ---- one step of all clients is one step of gradient descent -----------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("columns", [COLUMNS, WEIGHED])
def test_fed_sgd_is_gradient_descent_on_all_rows(parts, columns):
    weighed = columns is WEIGHED
    state, history = run(FED_SGD, clients(), 4, columns=columns, parts=parts)
    w = initial()
    for _ in range(4):
        w = w - RATE * gradient(w, clients(), weighed=weighed)
    assert torch.allclose(vector(state["weights"]), w, rtol=0, atol=1e-12)
    assert [row["clients"] for row in history] == [5] * 4


def test_the_loss_is_the_mean_over_all_rows():
    _, history = run(FED_SGD, clients(), 1, columns=WEIGHED)
    joined = pa.concat_tables(clients())
    module = nn.Linear(3, 1).double()
    module.load_state_dict(FederatedAveraging("client").init(objective(), 3)["weights"])
    output = module(torch.tensor(np.stack(joined["x"].to_numpy()))).flatten().detach()
    errors = output - torch.tensor(joined["y"].to_numpy())
    a = torch.tensor(joined["w"].to_numpy())
    assert history[0]["loss"] == pytest.approx(float((a * errors**2).sum() / a.sum()), rel=1e-12)


# ---- one client is local training --------------------------------------------------------------------------------


def locally(table: pa.Table, client: int, rounds: int, *, epochs: int, batch_size: int) -> torch.Tensor:
    """The client's own training, round after round."""
    (part,) = dealt([table], COLUMNS, 1)
    module = module_of(objective(), FederatedAveraging("client").init(objective(), 3)["weights"])
    for number in range(rounds):
        local = Local(epochs, batch_size, number, (3, client))
        local.train(objective(), module, as_only_shard(part, objective().criterion()))
    return vector(module.state_dict())


def test_one_client_is_local_training():
    algorithm = FederatedAveraging("client", client_fraction=1.0, epochs=3, batch_size=4)
    state, _ = run(algorithm, clients()[1:2], 3)
    expected = locally(clients()[1], IDS[1], 3, epochs=3, batch_size=4)
    assert torch.allclose(vector(state["weights"]), expected, rtol=0, atol=1e-14)


def test_a_round_is_the_mean_of_the_clients_by_their_rows():
    algorithm = FederatedAveraging("client", client_fraction=1.0, epochs=2, batch_size=4)
    state, _ = run(algorithm, clients(), 1, parts=2)
    alone_ = [locally(table, name, 1, epochs=2, batch_size=4) for table, name in zip(clients(), IDS, strict=True)]
    expected = sum(size * w for size, w in zip(SIZES, alone_, strict=True)) / sum(SIZES)
    assert torch.allclose(vector(state["weights"]), expected, rtol=0, atol=1e-13)


def test_clients_who_train_say_nothing_of_who_trained_before_them():
    algorithm = FederatedAveraging("client", client_fraction=1.0, epochs=2, batch_size=4, prox_mu=0.1, quantize_bits=8)
    one, _ = run(algorithm, clients(), 2, parts=1)
    other, _ = run(algorithm, clients(), 2, parts=5)
    assert torch.allclose(vector(one["weights"]), vector(other["weights"]), rtol=0, atol=1e-13)


# ---- the server --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("beta", "eta"), [(0.0, 0.5), (0.9, 1.0), (0.7, 0.3)])
def test_the_servers_velocity(beta, eta):
    algorithm = FederatedAveraging(
        "client", client_fraction=1.0, batch_size=1000, epochs=2, momentum=beta, learning_rate=eta
    )
    state, _ = run(algorithm, clients(), 5, parts=2)
    w, v = initial(), torch.zeros(4, dtype=torch.float64)
    for _ in range(5):
        d = torch.zeros_like(w)
        for size, table in zip(SIZES, clients(), strict=True):
            one = w - RATE * gradient(w, [table])
            two = one - RATE * gradient(one, [table])
            d += size / sum(SIZES) * (w - two)
        v = beta * v + d
        w = w - eta * v
    assert torch.allclose(vector(state["weights"]), w, rtol=0, atol=1e-12)
    assert torch.allclose(state["velocity"], v, rtol=0, atol=1e-12)


def test_mu_is_the_proximal_term():
    mu = 0.8
    state, _ = run(
        FederatedAveraging("client", client_fraction=1.0, batch_size=1000, epochs=3, prox_mu=mu), clients()[:1], 1
    )
    start = initial()
    w = start
    for _ in range(3):
        w = w - RATE * (gradient(w, clients()[:1]) + mu * (w - start))
    assert torch.allclose(vector(state["weights"]), w, rtol=0, atol=1e-13)


def test_mu_holds_clients_nearer():
    moved = []
    for mu in (0.0, 0.1, 1.0, 10.0):
        algorithm = FederatedAveraging("client", client_fraction=1.0, epochs=10, batch_size=4, prox_mu=mu)
        state, _ = run(algorithm, clients(), 1)
        moved.append(float((vector(state["weights"]) - initial()).norm()))
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < moved[0] / 2


# ---- who trains --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fraction", "expected"), [(1e-9, 1), (0.2, 1), (0.6, 3), (1.0, 5)])
def test_a_fraction_of_the_clients_train_and_one_at_least(fraction, expected):
    _, history = run(FederatedAveraging("client", client_fraction=fraction), clients(), 6, parts=2)
    assert [row["clients"] for row in history] == [expected] * 6


def test_every_client_has_its_turn():
    algorithm = FederatedAveraging("client", client_fraction=0.2)
    state, _ = run(algorithm, clients(), 1, parts=2)
    drawn = set()
    for number in range(40):
        chosen = [(part, each) for part in range(2) for each in algorithm._chosen({**state, "round": number}, part)]
        assert len(chosen) == 1
        drawn |= set(chosen)
    assert drawn == {(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)}


# ---- models with more than weights -------------------------------------------------------------------------------


class Tied(nn.Module):
    """Two layers that have one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.last = nn.Linear(3, 3), nn.Linear(3, 3, bias=False), nn.Linear(3, 1)
        self.other.weight = self.one.weight

    def forward(self, x):
        return self.last(self.other(torch.tanh(self.one(x))))


def test_a_tied_parameter_follows_the_server():
    """The other name of a tied parameter was averaged plainly, and on loading it overwrote the server's step."""
    minimised = Objective(Tied, nn.MSELoss(), partial(torch.optim.SGD, lr=RATE), precision="fp64")
    algorithm = FederatedAveraging("client", client_fraction=1.0, batch_size=1000, learning_rate=0.25)
    before = algorithm.init(minimised, 3)["weights"]
    state, _ = run(algorithm, clients(), 1, objective=minimised)
    whole, _ = run(FED_SGD, clients(), 1, objective=minimised)
    assert "other.weight" not in state["weights"]
    for name, tensor in state["weights"].items():
        expected = before[name] + 0.25 * (whole["weights"][name] - before[name])
        assert torch.allclose(tensor, expected, rtol=0, atol=1e-13), name


class Counting(nn.Module):
    """Notes how many rows it saw in a buffer that is in no state_dict, and stretches its inputs by it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 1), nn.BatchNorm1d(3)
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.seen += len(x)
        return self.linear(self.norm(x)) * (1 + self.seen)


def test_buffers_begin_anew_with_every_client_and_are_averaged():
    minimised = Objective(Counting, nn.MSELoss(), partial(torch.optim.SGD, lr=1e-5), precision="fp64")
    algorithm = FederatedAveraging("client", client_fraction=1.0, epochs=2, batch_size=1000)
    one, history = run(algorithm, clients(), 2, objective=minimised)
    other, _ = run(algorithm, clients(), 2, objective=minimised, parts=5)
    for name, tensor in one["weights"].items():
        assert torch.allclose(tensor, other["weights"][name], rtol=0, atol=1e-13), name
    means = [np.stack(table["x"].to_numpy()).mean(0) for table in clients()]
    expected = sum(size * mean for size, mean in zip(SIZES, means, strict=True)) / sum(SIZES)
    grown = 1 - 0.9**4  # of running means that began at 0, after four batches in two rounds
    assert torch.allclose(one["weights"]["norm.running_mean"], torch.tensor(expected) * grown, rtol=0, atol=1e-12)
    # 10 trained numbers and 6 of buffers, of 8 bytes each.
    assert history[0]["bytes"] == 5 * (10 + 6) * 8


# ---- what cannot be ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"client_fraction": 0.0}, "fraction=0.0"),
        ({"client_fraction": 1.5}, "fraction=1.5"),
        ({"client_fraction": float("nan")}, "fraction=nan"),
        ({"rounds": 0}, "rounds=0"),
        ({"epochs": 1.5}, "epochs=1.5"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"learning_rate": float("inf")}, "learning_rate=inf"),
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"prox_mu": -1.0}, "mu=-1.0"),
        ({"prox_mu": float("nan")}, "mu=nan"),
        ({"quantize_bits": 0}, "bits=0"),
        ({"quantize_bits": 17}, "bits=17"),
        ({"quantize_bits": 2.5}, "bits=2.5"),
    ],
)
def test_hyperparameters_are_refused_by_name(given, named):
    with pytest.raises(InvalidInput, match=named):
        FederatedAveraging("client", **given)


def test_a_client_whose_training_diverges_is_named():
    tables = clients()
    with pytest.raises(InvalidInput, match=rf"client {IDS[1]}: the loss is not finite; lower the learning rate"):
        run(
            FederatedAveraging("client", client_fraction=1.0, epochs=400), tables[1:2], 1, objective=objective(rate=1e9)
        )
