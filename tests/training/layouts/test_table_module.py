"""A table as a module in one process, its arguments, and its optimizers."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from sparkdl.errors import InvalidInput
from sparkdl.training.layouts.pipelined import Pipelined
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.layouts.row_adagrad import RowAdagrad
from sparkdl.training.layouts.sharded import Sharded
from sparkdl.training.layouts.table import Table
from sparkdl.training.layouts.tensor_parallel import TensorParallel
from sparkdl.training.objective.module_factory import new_module
from sparkdl.training.objective.objective import Objective
from tests.training.layouts.test_table import WithTables


def test_a_table_looks_up_as_embeddings_do():
    ids, offsets = torch.tensor([[3, 0], [1, 3]]), torch.tensor([0, 3])
    for mode in (None, "sum", "mean"):
        table = Table(5, 3, padding_idx=0, mode=mode)
        if mode is None:
            expected = nn.functional.embedding(ids, table.weight)
            assert torch.equal(table(ids), expected)
            continue
        whole = nn.EmbeddingBag(5, 3, mode=mode, padding_idx=0, _weight=table.weight.detach())
        assert torch.equal(table(ids), whole(ids))
        assert torch.equal(table(ids.flatten(), offsets), whole(ids.flatten(), offsets))
        nothing = torch.empty(0, dtype=torch.int64)
        assert torch.equal(table(nothing, torch.zeros(2, dtype=torch.int64)), torch.zeros(2, 3))


def test_rows_on_the_host_stay_there():
    table, layers = Table(4, 2, host=True), nn.ModuleList([Table(4, 2), nn.Linear(1, 1)])
    layers.append(table)
    layers.double().to("meta")
    assert (table.weight.dtype, table.weight.device.type) == (torch.float64, "meta")
    table = nn.Sequential(Table(4, 2, host=True)).double()[0]
    assert (table.weight.dtype, table.weight.device.type) == (torch.float64, "cpu")


def test_rows_of_a_function_and_of_a_state():
    rows = torch.randn(6, 2)
    assert torch.equal(Table(6, 2, init=lambda ids: rows[ids]).weight, rows)
    table = Table(6, 2)
    table.load_state_dict({"weight": rows})
    assert torch.equal(table.weight, rows)
    with pytest.raises(InvalidInput, match=r"init returned \[2, 3\] for 2 ids"):
        Table(2, 2, init=lambda ids: torch.zeros(2, 3))


def test_a_table_without_parameters_has_no_values():
    module = new_module(partial(Table, 10**9, 16), parameters=False)
    assert module.weight.is_meta


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_embeddings": 0}, "num_embeddings is 0"),
        ({"embedding_dim": 1.5}, "embedding_dim is 1.5"),
        ({"padding_idx": 4}, "padding_idx is 4; expected an id below 4"),
        ({"mode": "max"}, "mode is 'max'"),
        ({"init": -1.0}, "init is -1"),
        ({"admit": -1}, "admit is -1"),
        ({"host": "cpu"}, "host is 'cpu'"),
    ],
)
def test_wrong_arguments_raise(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        Table(**({"num_embeddings": 4, "embedding_dim": 2} | arguments))


@pytest.mark.parametrize("wrong", [-1, 4])
def test_an_id_outside_of_the_table_raises_with_its_place(wrong):
    with pytest.raises(InvalidInput, match=rf"has? 4 rows, and the ids \[2, 2\] have {wrong} at \[1, 0\]"):
        Table(4, 2)(torch.tensor([[0, 3], [wrong, 1]]))


def test_offsets_that_do_not_fit_raise():
    with pytest.raises(InvalidInput, match="expected offsets with a mode"):
        Table(4, 2, mode="sum")(torch.tensor([1, 2]))
    with pytest.raises(InvalidInput, match="expected offsets with a mode"):
        Table(4, 2)(torch.tensor([1, 2]), torch.tensor([0]))


@pytest.mark.parametrize(
    ("layout", "settings", "message"),
    [
        (Pipelined(2), {}, "layout is Pipelined, and the model has a Table, numbers, bag"),
        (TensorParallel(2, plan={"dense": "column"}), {}, "layout is TensorParallel, and the model has a Table"),
        (Sharded(), {"precision": "fp16"}, "precision='fp16' is set"),
        (Replicated(), {"precision": "fp16"}, "precision='fp16' is set"),
    ],
)
def test_layouts_and_settings_that_do_not_train_tables_raise(layout, settings, message):
    objective = Objective(WithTables, nn.MSELoss(), **settings)
    with pytest.raises(InvalidInput, match=message):
        layout.check(objective, WithTables(), 2)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (torch.optim.Adam, "cannot train rows: RuntimeError"),
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9), "sparse states"),
        (partial(RowAdagrad, lr=-1), "lr=-1"),
    ],
)
def test_optimizers_without_sparse_steps_raise(optimizer, message):
    with pytest.raises(InvalidInput, match=message):
        Replicated().check(Objective(WithTables, nn.MSELoss()), WithTables(optimizer), 2)


def test_row_adagrad_steps_by_the_mean_square_of_a_row():
    weight = nn.Parameter(torch.ones(3, 2))
    optimizer = RowAdagrad([weight], lr=0.1)
    for _ in range(2):
        weight.grad = torch.sparse_coo_tensor([[1, 1]], [[1.0, 2.0], [2.0, 0.0]], weight.shape)
        optimizer.step()
    steps = torch.tensor([3.0, 2.0]) * sum(0.1 / (6.5 * number) ** 0.5 for number in (1, 2))
    torch.testing.assert_close(weight.detach(), torch.ones(3, 2) - torch.stack([0 * steps, steps, 0 * steps]))
    weight.grad = torch.ones(3, 2)
    with pytest.raises(InvalidInput, match="dense gradient"):
        optimizer.step()
