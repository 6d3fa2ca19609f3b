"""Modules without parameters have the shapes, dtypes, ties and buffers of those with them."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack
from sparkdl.ml.warm_start import WarmStart
from sparkdl.training.objective.module_factory import new_module, without_parameters
from sparkdl.training.objective.objective import Objective


class Encoder(nn.Module):
    """Tied embeddings, one parameter under two names, buffers of both kinds, a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.score = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.score.weight = self.embed.weight
        once = nn.Parameter(torch.ones(3))
        self.first, self.second = once, once
        self.norm = nn.BatchNorm1d(4)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.register_buffer("steps", torch.arange(3.0), persistent=False)


class Scaled(nn.Module):
    """Uses its parameters in the constructor: as a number, for a buffer, for a tensor, or in a list."""

    def __init__(self, use: str) -> None:
        super().__init__()
        weight = nn.Parameter(torch.full((2,), 3.0))
        self.weight = weight
        self.scale: Any = float(self.weight.detach().sum()) if use == "number" else 0.0
        self.register_buffer("start", self.weight.detach().clone() if use == "buffer" else torch.full((2,), 3.0))
        self.norm = self.weight.detach().norm() if use == "tensor" else None
        self.listed = [weight] if use == "list" else []


def loaded() -> nn.Module:
    """A factory that loads a file."""
    file = io.BytesIO()
    torch.save(nn.Linear(3, 2).state_dict(), file)
    file.seek(0)
    module = nn.Linear(3, 2)
    module.load_state_dict(torch.load(file))
    return module


FACTORIES = {
    "encoder": Encoder,
    "instance": Encoder(),
    "convolutions": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)),
    "half": partial(nn.Linear, 3, 2, dtype=torch.float16),
    "recurrent": partial(nn.LSTM, 3, 4, 2),
    "attention": partial(nn.TransformerEncoderLayer, 8, 2),
    "normalised": lambda: parametrizations.weight_norm(nn.Linear(3, 2)),
    "orthogonal": lambda: nn.Sequential(nn.Linear(3, 2).apply(lambda one: nn.init.orthogonal_(one.weight))),
    "loaded": loaded,
}


@pytest.mark.parametrize("name", FACTORIES)
def test_module_without_parameters_differs_in_their_values_alone(name: str) -> None:
    objective = Objective(FACTORIES[name], nn.MSELoss(), precision="fp64", channels_last=name == "convolutions")
    expected, module = objective.build(), objective.build(parameters=False)
    groups = [dict(one.named_parameters(remove_duplicate=False)) for one in (expected, module)]
    described = [{key: (p.shape, p.dtype, p.requires_grad, p.stride()) for key, p in group.items()} for group in groups]
    assert described[0] == described[1]
    assert all(value.is_meta for value in groups[1].values())
    ties = [{(one, two) for one in group for two in group if group[one] is group[two]} for group in groups]
    assert ties[0] == ties[1]
    buffers, same = (dict(one.named_buffers()) for one in (expected, module))
    assert buffers.keys() == same.keys()
    assert all(torch.equal(value, same[key]) for key, value in buffers.items())
    assert list(expected.state_dict()) == list(module.state_dict())


@pytest.mark.parametrize("use", ["number", "buffer", "tensor", "list"])
def test_factory_that_uses_its_parameters_is_called_again(use: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "sparkdl"):
        module = new_module(partial(Scaled, use), parameters=False)
    assert module.get_buffer("start").tolist() == module.get_parameter("weight").tolist() == [3.0, 3.0]
    assert "the factory is called again, with parameters" in caplog.text


def test_modules_of_other_threads_keep_their_parameters() -> None:
    made: list[nn.Module] = []
    with without_parameters():
        thread = threading.Thread(target=lambda: made.append(nn.Linear(2, 1)))
        thread.start()
        thread.join()
        made.append(nn.Linear(2, 1))
    made.append(nn.Linear(2, 1))
    assert [module.weight.is_meta for module in made] == [False, True, False]


def test_warm_start_without_parameters_reads_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    start = WarmStart(Encoder, pack(Encoder()))
    monkeypatch.setattr("sparkdl.ml.warm_start.unpack", _unread)
    assert new_module(start, parameters=False).get_parameter("first").is_meta


def _unread(weights: bytes, module: nn.Module) -> None:
    raise AssertionError("the weights are read")


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (partial(nn.LazyLinear, 1), "lazy parameters"),
        (lambda: nn.Linear(2, 1).requires_grad_(False), "no trainable parameters"),
        (partial(nn.Linear, 1, 1, dtype=torch.complex64), "complex parameters"),
        (lambda: 3, "returned int"),
    ],
    ids=["lazy", "frozen", "complex", "no module"],
)
def test_invalid_modules_raise_without_parameters_too(factory: Callable[[], nn.Module], message: str) -> None:
    for parameters in (True, False):
        with pytest.raises(InvalidInput, match=message):
            Objective(factory, nn.MSELoss()).build(parameters=parameters)
