"""Columns of client ids, and clients without weight, labels or training rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.local_tasks import ShardedData
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.rounds.algorithms.fedavg import FederatedAveraging, ShardClients
from sparkdl.rounds.loop import Rounds
from sparkdl.training.objective.objective import Objective

ROWS = 24
NUMBER = np.arange(ROWS)
CLIENT = InputColumn("client", "int64")
COLUMNS = Columns((InputColumn("x"),), InputColumn("y"), client=CLIENT, floating="float64")
WEIGHED = replace(COLUMNS, weight=InputColumn("w"))
VALIDATED = replace(COLUMNS, validation=InputColumn("v"))


def table(client, **others) -> pa.Table:
    x = np.random.default_rng(2).normal(size=(ROWS, 2))
    return pa.table({"x": list(x), "y": x @ [1.0, 2.0], "client": client, **others})


def run(data: pa.Table, columns: Columns = COLUMNS, loss: nn.Module | None = None, **options):
    """The weights after two rounds of all clients, and the number of clients in each round."""
    model, sgd = partial(nn.Linear, 2, 3 if loss else 1), partial(torch.optim.SGD, lr=0.1)
    objective = Objective(model, loss or nn.MSELoss(), sgd, precision="fp64")
    algorithm = FederatedAveraging(**{"client": "client", "client_fraction": 1.0, "rounds": 2, **options})
    with InlineCluster().map_reduce(data, columns) as jobs:
        state, history = Rounds(algorithm, objective).run(jobs)
    assert all(bool(torch.isfinite(each).all()) for each in state["weights"].values())
    return state["weights"]["weight"], [row["clients"] for row in history]


def rows_of(data: pa.Table, columns: Columns) -> dict[int, list[int]]:
    """Client -> ids of its rows, in order."""
    (shard,) = ShardedData([data], columns, 1).shards()
    clients = ShardClients.of(shard, "client", Objective(partial(nn.Linear, 2, 1), nn.MSELoss()).criterion())
    rows = {}
    for index in range(len(clients)):
        name, own = clients[index]
        assert (own.index, own.count, own.shard_rows) == (0, 1, (own.rows,))
        rows[name] = own.tensors["id"][torch.arange(own.rows) if own.order is None else own.order.long()].tolist()
    return rows


def test_every_row_belongs_to_its_client_in_order_of_ids():
    random = np.random.default_rng(0)
    ids, client = random.permutation(ROWS), random.integers(-2, 3, ROWS)
    rows = rows_of(table(client, id=ids), replace(COLUMNS, row_id=InputColumn("id", "int64")))
    assert list(rows) == sorted(set(client.tolist()))
    assert rows == {each: sorted(ids[client == each].tolist()) for each in rows}
    stored = replace(COLUMNS, inputs=(InputColumn("x"), InputColumn("id", "int64")))
    assert rows_of(table(NUMBER % 5, id=NUMBER), stored) == {each: [*range(each, ROWS, 5)] for each in range(5)}


# ---- client columns --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [np.uint8([0, 1]), np.float64([0, 1]), np.int64([-(1 << 63), (1 << 63) - 1])], ids=str)
def test_whole_numbers_of_any_type_are_clients(ids):
    assert run(table(np.tile(ids, ROWS // 2)))[1] == [2, 2]


@pytest.mark.parametrize(
    ("column", "client", "message"),
    [
        (InputColumn("client"), "client", r"'client' .*float64.*Column\('client', 'int64'\)"),
        (None, "client", "client='client', and there is no client column"),
        (CLIENT, "user", "client='user', and the client column is 'client'"),
    ],
)
def test_unsuitable_client_column_raises(column, client, message):
    with pytest.raises(InvalidInput, match=message):
        run(table(NUMBER.astype(float)), replace(COLUMNS, client=column), client=client)


# ---- clients without weight ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "others", "trains"),
    [
        (WEIGHED, {"w": np.where(NUMBER % 4 == 2, 0.0, 1.0)}, NUMBER % 4 != 2),
        (VALIDATED, {"v": (NUMBER % 4 == 1) | (NUMBER == 0)}, (NUMBER % 4 != 1) & (NUMBER > 0)),
    ],
    ids=["weight 0", "validation rows"],
)
def test_client_without_training_rows_never_trains(columns, others, trains):
    data = table(NUMBER % 4, **others)
    weights, counts = run(data, columns)
    assert counts == [3, 3]
    without, _ = run(table(NUMBER % 4).filter(pa.array(trains)))
    assert torch.allclose(weights, without, rtol=0, atol=1e-14)


def test_client_with_ignored_labels_never_trains():
    data = table(NUMBER % 4).set_column(1, "y", pa.array(np.where(NUMBER % 4 == 0, -100, NUMBER % 4 % 3)))
    assert run(data, replace(COLUMNS, target=InputColumn("y", "int64")), nn.CrossEntropyLoss())[1] == [3, 3]


def test_only_clients_of_positive_weight_are_drawn():
    """A run failed with "no row weighs anything" where only those that were drawn had no weight."""
    data = table(NUMBER % 12, w=np.where(NUMBER % 12 == 7, 1.0, 0.0))
    assert run(data, WEIGHED, client_fraction=1e-3, rounds=20)[1] == [1] * 20
