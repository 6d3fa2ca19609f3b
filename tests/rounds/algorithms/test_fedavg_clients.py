"""Client columns as they come, and clients with little to say."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.local_tasks import dealt
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.rounds.algorithms.fedavg import FederatedAveraging
from sparkdl.rounds.clients import Clients
from sparkdl.rounds.loop import Rounds
from sparkdl.training.objective import Objective

ROWS = 24
CLIENT = InputColumn("client", "int64")
COLUMNS = Columns((InputColumn("x"),), InputColumn("y"), client=CLIENT, floating="float64")
WEIGHED = Columns((InputColumn("x"),), InputColumn("y"), weight=InputColumn("w"), client=CLIENT, floating="float64")


def table(client, **others) -> pa.Table:
    """Rows of these clients."""
    random = np.random.default_rng(2)
    x = random.normal(size=(ROWS, 2))
    return pa.table({"x": list(x), "y": x @ [1.0, 2.0], "client": client, **others})


def run(data: pa.Table, columns: Columns = COLUMNS, loss: nn.Module | None = None, **options):
    """Two rounds of all clients, unless asked otherwise."""
    outputs = 1 if loss is None else 3
    objective = Objective(
        partial(nn.Linear, 2, outputs), loss or nn.MSELoss(), partial(torch.optim.SGD, lr=0.1), precision="fp64"
    )
    algorithm = FederatedAveraging(**{"client": "client", "client_fraction": 1.0, "rounds": 2, **options})
    with InlineCluster().map_reduce(data, columns) as jobs:
        state, history = Rounds(algorithm, objective).run(jobs)
    assert all(bool(torch.isfinite(each).all()) for each in state["weights"].values())
    return state, [row for row in history if "loss" in row]


def clients_of(data: pa.Table, columns: Columns = COLUMNS) -> dict[int, list[int]]:
    """Client -> its rows' ids, in order."""
    (part,) = dealt([data], columns, 1)
    clients = Clients.of(part, "client", Objective(partial(nn.Linear, 2, 1), nn.MSELoss()).criterion())
    found = {}
    for index in range(len(clients)):
        name, own = clients[index]
        assert (own.index, own.count, own.parts) == (0, 1, (own.rows,))
        found[name] = own.tensors["id"][torch.arange(own.rows) if own.order is None else own.order.long()].tolist()
    return found


# ---- whose rows are whose ----------------------------------------------------------------------------------------


def test_rows_come_in_the_order_of_their_ids():
    random = np.random.default_rng(0)
    ids, client = random.permutation(ROWS), random.integers(-2, 3, ROWS)
    columns = Columns(
        (InputColumn("x"),), InputColumn("y"), client=CLIENT, row_id=InputColumn("id", "int64"), floating="float64"
    )
    found = clients_of(table(client, id=ids), columns)
    assert list(found) == sorted(set(client.tolist()))
    assert found == {each: sorted(ids[client == each].tolist()) for each in found}


def test_every_row_is_one_clients():
    columns = Columns(
        (InputColumn("x"), InputColumn("id", "int64")), InputColumn("y"), client=CLIENT, floating="float64"
    )
    found = clients_of(table(np.arange(ROWS) % 5, id=np.arange(ROWS)), columns)
    assert sorted(row for rows in found.values() for row in rows) == list(range(ROWS))
    assert found[3] == [3, 8, 13, 18, 23]


# ---- columns as they come ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_integers_of_any_width_are_clients(kind):
    _, history = run(table((np.arange(ROWS) % 4).astype(kind)))
    assert [row["clients"] for row in history] == [4, 4]


def test_negative_and_large_ids_are_clients():
    ids = [-1, 0, -(1 << 63), (1 << 63) - 1]
    _, history = run(table(np.array(ids * (ROWS // 4), dtype=np.int64)))
    assert [row["clients"] for row in history] == [4, 4]


def test_whole_doubles_are_clients():
    _, history = run(table((np.arange(ROWS) % 4).astype(np.float64)))
    assert [row["clients"] for row in history] == [4, 4]


@pytest.mark.parametrize(
    ("client", "column", "message"),
    [
        (pa.array([None, *range(ROWS - 1)], pa.int64()), CLIENT, r"'client' has 1 null"),
        (np.linspace(0.0, 1.0, ROWS), CLIENT, r"column 'client'.*int64"),
        (np.array([np.nan, *range(ROWS - 1)]), CLIENT, r"column 'client'.*NaN"),
        (pa.array([f"user {row}" for row in range(ROWS)]), CLIENT, r"'client' has type string.*Turn strings into"),
        (pa.array([f"user {row}" for row in range(ROWS)]).dictionary_encode(), CLIENT, r"'client'.*Turn strings into"),
        (list(np.zeros((ROWS, 2))), CLIENT, r"column 'client'"),
        (np.arange(ROWS) / 2, InputColumn("client"), r"'client' is of float64.*Column\('client', 'int64'\)"),
    ],
)
def test_what_is_no_id_is_refused_by_name(client, column, message):
    columns = Columns((InputColumn("x"),), InputColumn("y"), client=column, floating="float64")
    with pytest.raises(InvalidInput, match=message):
        run(table(client), columns)


def test_a_column_that_is_not_there():
    with pytest.raises(InvalidInput, match="there is no column 'client'; the data has 'x', 'y'"):
        run(table(np.arange(ROWS)).drop(["client"]))


def test_no_client_column():
    columns = Columns((InputColumn("x"),), InputColumn("y"), floating="float64")
    with pytest.raises(InvalidInput, match=r"client='client' was asked for and there is no client column"):
        run(table(np.arange(ROWS)), columns)


def test_another_client_column():
    with pytest.raises(InvalidInput, match=r"client='user' was asked for and the client column is 'client'"):
        run(table(np.arange(ROWS)), client="user")


# ---- clients with little to say ----------------------------------------------------------------------------------


def test_a_client_whose_rows_weigh_nothing_never_trains():
    client = np.arange(ROWS) % 4
    data = table(client, w=np.where(client == 2, 0.0, 1.0))
    state, history = run(data, WEIGHED)
    assert [row["clients"] for row in history] == [3, 3]
    without, _ = run(data.filter(pa.array(client != 2)), WEIGHED)
    assert torch.allclose(state["weights"]["weight"], without["weights"]["weight"], rtol=0, atol=1e-14)


def test_only_clients_that_weigh_something_are_drawn():
    """A run failed with "no row weighs anything" where only those that were drawn had no weight."""
    client = np.arange(ROWS) % 12
    data = table(client, w=np.where(client == 7, 1.0, 0.0))
    _, history = run(data, WEIGHED, client_fraction=1e-3, rounds=20)
    assert [row["clients"] for row in history] == [1] * 20


def test_a_client_whose_labels_are_all_ignored_never_trains():
    client = np.arange(ROWS) % 4
    data = table(client).set_column(1, "y", pa.array(np.where(client == 0, -100, client % 3)))
    columns = Columns((InputColumn("x"),), InputColumn("y", "int64"), client=CLIENT, floating="float64")
    _, history = run(data, columns, nn.CrossEntropyLoss())
    assert [row["clients"] for row in history] == [3, 3]


@pytest.mark.parametrize("bits", [None, 4])
def test_nothing_weighs_anything(bits):
    with pytest.raises(InvalidInput, match="no row weighs anything"):
        run(table(np.arange(ROWS) % 4, w=np.zeros(ROWS)), WEIGHED, quantize_bits=bits)


def test_clients_weigh_what_their_rows_do():
    data = table(np.repeat([1, 2], [20, 4]), w=np.ones(ROWS))
    weighed, _ = run(data, WEIGHED, batch_size=100)
    plain, _ = run(data, COLUMNS, batch_size=100)
    assert torch.allclose(weighed["weights"]["weight"], plain["weights"]["weight"], rtol=0, atol=1e-14)


VALIDATED = Columns(
    (InputColumn("x"),), InputColumn("y"), validation=InputColumn("v"), client=CLIENT, floating="float64"
)


def test_rows_for_validation_train_nobody():
    client = np.arange(ROWS) % 3
    held = (client == 1) | (np.arange(ROWS) == 0)
    state, history = run(table(client, v=held), VALIDATED)
    assert [row["clients"] for row in history] == [2, 2]
    without, _ = run(table(client).filter(pa.array(~held)))
    assert torch.allclose(state["weights"]["weight"], without["weights"]["weight"], rtol=0, atol=1e-14)


def test_all_rows_are_for_validation():
    with pytest.raises(InvalidInput, match="no rows to train on"):
        run(table(np.arange(ROWS) % 4, v=np.ones(ROWS, bool)), VALIDATED)


def test_a_client_for_every_row():
    _, history = run(table(np.arange(ROWS)))
    assert [row["clients"] for row in history] == [ROWS, ROWS]
