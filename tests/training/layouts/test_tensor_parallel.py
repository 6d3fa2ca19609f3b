"""Partners that hold parts of layers train as a single process does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparkdl.data.columns import InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.layouts.tensor_parallel import TensorParallel, tensor_slices
from sparkdl.training.layouts.tensors.plans import attention_plan, mlp_plan, planned_layers, transformer_plan
from tests.contracts import work
from tests.contracts.layout_contract import LayoutContract, OnFourWorkers, OnTwoWorkers, assert_close, resumable, resume
from tests.contracts.strategy_contract import ROWS, Case, numbers
from tests.results import merged


def halves(module: nn.Module) -> Mapping[str, str]:
    """A pair of layers, and for tied weights of odd sizes the rows of the batch."""
    names = dict(module.named_modules())
    if "norm" in names:
        return {"head": "batch"}
    return {"hidden": "columns", "head": "rows"} if "hidden" in names else {"*": "batch"}


@pytest.mark.slow
class TestTensorParallel(OnTwoWorkers, LayoutContract):
    layout = TensorParallel(2, halves)
    model = work.Net
    partners = alike = 2


class TestTensorParallelReplicas(OnFourWorkers, LayoutContract):
    layout = TensorParallel(2, halves)
    model = work.Net
    partners = alike = 2


# ---- plans -----------------------------------------------------------------------------------------------------------


class Tokens(nn.Module):
    """A model of tokens, made of the numbers of a row, with the layers that its class names."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 8, padding_idx=0)
        self.block = self.make_block()
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embedding.weight

    def make_block(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embedding((4 * x).abs().long().clamp(max=11))
        return torch.logsumexp(self.head(self.block(tokens)), -1).mean(-1)


class Encoder(Tokens):
    def make_block(self) -> nn.Module:
        return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


class Attention(nn.Module):
    """Self-attention with separate layers; heads of four numbers each."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        heads = (layer(x).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        output: Tensor = self.o(functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return output


class Attending(Tokens):
    def make_block(self) -> nn.Module:
        return Attention()


class Convolutions(nn.Module):
    """Convolutions by rows of the batch and wide layers by features, as A. Krizhevsky cut AlexNet."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv1d(1, 4, 2), nn.ReLU(), nn.Flatten())
        self.classifier = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.classifier(self.features(x.unsqueeze(1)))
        return output.squeeze(-1)


PLANS = {
    "pairs in sequences": (Tokens, mlp_plan()),
    "encoder": (Encoder, transformer_plan()),
    "attention": (Attending, attention_plan()),
    "embedding by entries and head by outputs": (Tokens, {"embedding": "rows", "head": "columns"}),
    "outputs without a pair": (Tokens, {"block.0": "columns", "block.3": "columns"}),
    "inputs without a pair": (Tokens, {"block.0": "rows", "block.2": "rows"}),
    "convolutions by rows, linear layers by features": (
        Convolutions,
        {"features": "batch", "classifier.0": "columns", "classifier.2": "rows"},
    ),
}


@pytest.mark.filterwarnings("ignore:plan has no pair")
@pytest.mark.parametrize("name", PLANS)
def test_plans_train_as_whole_models_do(pair, name):
    model, plan = PLANS[name]
    data = numbers() | {"held": np.arange(ROWS) < 5}
    case = Case(model, optimizer=partial(torch.optim.AdamW, lr=0.01), batch_size=11, epochs=2, max_grad_norm=0.5)
    columns = replace(case.columns(), validation=InputColumn("held", "bool"))
    layouts = (Replicated(), TensorParallel(2, plan))
    expected, actual = (pair.gang(case.training(layout=layout), data, columns) for layout in layouts)
    assert_close(merged(actual), merged(expected), 1e-10)
    for row, other in zip(actual[0].history, expected[0].history, strict=True):
        assert row["valid_loss"] == pytest.approx(other["valid_loss"], rel=1e-9)


class Dropped(nn.Module):
    """Dropout in a part that each partner runs on its rows, and after it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5))
        self.second = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.second(self.first(x))
        return output.squeeze(-1)


def test_partners_draw_the_same_random_numbers_also_after_another_layout(pair, tmp_path):
    """Rows of odd numbers, so that partners draw different numbers for their parts of the batch."""
    layout, settings = TensorParallel(2, {"first": "batch"}), {"model": Dropped, "batch_size": 9}
    resume(pair, resumable(tmp_path / "run", "AdamW", Replicated(), **settings, epochs=1))
    weights = resume(pair, resumable(tmp_path / "run", "AdamW", layout, **settings, replica_check_interval=1))
    assert all(weight.isfinite().all() for weight in weights.values())


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"hiden": "columns"}, r"plan has 'hiden': 'columns'; expected the name of a module.*'hidden', 'head'"),
        ({"hidden": "column"}, "one of columns, rows, batch"),
        ({}, "plan names no layer"),
        ({"hidden": "rows"}, "with 3 of them; expected a multiple of size=2"),
        (lambda module: {"head": "rows", "hidden": "batch", "*": "batch"}, None),
    ],
)
def test_plans_that_do_not_fit_raise(plan, message):
    module = work.Net()
    if message is None:
        assert [layer.kind for layer in planned_layers(module, plan, 2)] == ["batch", "batch"]
        return
    with pytest.raises(InvalidInput, match=message):
        planned_layers(module, plan, 2)


@pytest.mark.parametrize(
    "plan",
    [PLANS["convolutions by rows, linear layers by features"][1], {"classifier": "batch"}],
    ids=["first", "later"],
)
def test_a_step_with_fewer_rows_than_partners(pair, plan):
    """A partner without rows took no part in the gathers of the gradients of a later layer's inputs."""
    case = Case(Convolutions, optimizer=partial(torch.optim.SGD, lr=0.01), batch_size=1, epochs=1)
    layouts = (Replicated(), TensorParallel(2, plan))
    expected, actual = (merged(pair.gang(case.training(layout=one), numbers(), case.columns())) for one in layouts)
    assert_close(actual, expected)


class Draws:
    """A callback that draws a random number on rank 0 alone."""

    def on_step(self, run: Any) -> None:
        if run.rank == 0:
            torch.rand(1)


def test_partners_that_would_drop_other_numbers_raise(pair):
    training = replace(
        Case(Dropped, epochs=1).training(layout=TensorParallel(2, {"first": "batch"})), callbacks=(Draws(),)
    )
    with pytest.raises(InvalidInput, match="partners have other weights or random numbers"):
        pair.gang(training, numbers(), Case().columns())


@pytest.mark.parametrize("between", [nn.GLU(), nn.PReLU(16), nn.LayerNorm(16)], ids=lambda one: type(one).__name__)
def test_modules_that_need_all_numbers_make_no_pair(between):
    module = nn.Sequential(nn.Linear(4, 16), between, nn.Linear(16, 4))
    with pytest.raises(InvalidInput, match="plan names no layer"):
        planned_layers(module, mlp_plan(), 2)
    with pytest.raises(InvalidInput, match="between them 1, which does not treat each number alone"):
        planned_layers(module, {"0": "columns", "2": "rows"}, 2)


def test_other_layers_and_nested_layers_raise():
    module = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.Conv1d(2, 2, 2), Tokens())
    for plan, message in [
        ({"0": "batch"}, "with batch normalisation"),
        ({"1": "columns"}, "which is a Conv1d; expected an nn.Linear or nn.Embedding, or 'batch'"),
        ({"2": "batch", "2.block.0": "columns"}, r"2 and 2\.block\.0, which is within it"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            planned_layers(module, plan, 2)
    layers = planned_layers(module, {"2.embedding": "columns"}, 2)
    with pytest.raises(InvalidInput, match=r"2\.head\.weight is the parameter of several layers"):
        tensor_slices(module, layers, 0, 2)
