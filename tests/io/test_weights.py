"""Weights go into safetensors bytes and come back bit by bit."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable

import pytest
import torch
from torch import nn

from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack, read_state, unpack


class Tied(nn.Module):
    """Two names for one weight, and a third for its transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("turned", self.embedding.weight.detach().t())


class Mixed(nn.Module):
    """Buffers of every kind beside the weights, some of them in the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4).bfloat16())
        self.short = nn.Parameter(torch.randn(5).half())
        self.scalar = nn.Parameter(torch.randn(()))
        self.none = nn.Parameter(torch.randn(0, 3))
        self.register_buffer("count", torch.tensor(2**60 + 1))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("bytes", torch.arange(7, dtype=torch.uint8))
        self.register_buffer("columns", torch.randn(4, 5).t())  # not contiguous
        self.register_buffer("empty", torch.empty(0))
        self.register_buffer("also_empty", torch.empty(0))
        self.register_buffer("unsaved", torch.zeros(2), persistent=False)


def norm() -> nn.Module:
    module = nn.Sequential(
        nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))
    )
    module(torch.randn(5, 3, 2, 2))
    return module


MODULES: list[Callable[[], nn.Module]] = [lambda: nn.Linear(3, 2), Tied, Mixed, norm, nn.ReLU]
each_module = pytest.mark.parametrize("make", MODULES, ids=["linear", "tied", "mixed", "norm", "nothing"])


def header(packed: bytes) -> dict[str, dict[str, object]]:
    (length,) = struct.unpack("<Q", packed[:8])
    found: dict[str, dict[str, object]] = json.loads(packed[8 : 8 + length])
    return found


@each_module
def test_every_bit_comes_back(make: Callable[[], nn.Module]) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        module, other = make(), make()
        packed = pack(module)
        unpack(packed, other)
        for name, tensor in module.state_dict().items():
            assert other.state_dict()[name].dtype == tensor.dtype
            assert torch.equal(other.state_dict()[name], tensor)
        assert pack(other) == packed


def test_tensors_come_back_in_the_order_of_their_names() -> None:
    module = nn.Sequential(*(nn.Linear(2, 2) for _ in range(9)))
    for _ in range(5):
        assert list(read_state(pack(module))) == sorted(module.state_dict())


def test_tied_weights_are_written_once_and_stay_tied() -> None:
    module, other = Tied(), Tied()
    packed = pack(module)
    assert set(header(packed)) == {"__metadata__", "embedding.weight", "turned"}
    unpack(packed, other)
    assert other.head.weight is other.embedding.weight
    assert torch.equal(other.head.weight, module.embedding.weight)


def test_tied_weights_fit_a_module_where_they_are_not_tied() -> None:
    class Loose(Tied):
        def __init__(self) -> None:
            super().__init__()
            self.head.weight = nn.Parameter(torch.zeros(6, 4))

    module, other = Tied(), Loose()
    unpack(pack(module), other)
    assert torch.equal(other.head.weight, module.embedding.weight)
    assert torch.equal(other.embedding.weight, module.embedding.weight)


def test_packing_leaves_the_module_alone() -> None:
    module = Tied()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    pack(module)
    assert module.head.weight is module.embedding.weight
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_float64_weights_keep_their_digits() -> None:
    module, other = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()
    unpack(pack(module), other)
    assert torch.equal(other.weight, module.weight)


# ---- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 40, -1])
def test_bytes_that_are_cut_off_are_refused(length: int) -> None:
    with pytest.raises(InvalidInput, match="the saved weights cannot be read"):
        unpack(pack(Tied())[:length], Tied())


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_header_is_refused_or_does_no_harm(seed: int) -> None:
    """Whatever byte of the header changes, nothing but ``InvalidInput`` is raised."""
    packed, draw = pack(Tied()), random.Random(seed)
    (length,) = struct.unpack("<Q", packed[:8])
    refused = 0
    for _ in range(60):
        damaged = bytearray(packed)
        damaged[draw.randrange(8 + length)] = draw.randrange(256)
        try:
            unpack(bytes(damaged), Tied())
        except InvalidInput:
            refused += 1
    assert refused > 30


@pytest.mark.parametrize("given", [b"nonsense", b"\0" * 100, b"PK\x03\x04" + b"x" * 100])
def test_other_files_are_refused(given: bytes) -> None:
    with pytest.raises(InvalidInput, match="the saved weights cannot be read"):
        unpack(given, Tied())


@pytest.mark.parametrize(
    ("aliases", "message"),
    [('{"head.weight": "nobody"}', "nobody"), ("[1]", "items"), ("not json", "Expecting"), ("3", "items")],
)
def test_aliases_of_what_is_not_there_are_refused(aliases: str, message: str) -> None:
    from safetensors.torch import save

    packed = save({"embedding.weight": torch.zeros(6, 4), "turned": torch.zeros(4, 6)}, {"aliases": aliases})
    with pytest.raises(InvalidInput, match=f"the saved weights cannot be read: .*{message}"):
        unpack(packed, Tied())


# ---- another architecture --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: nn.Linear(3, 3), "size mismatch for weight"),
        (lambda: nn.Linear(3, 2, bias=False), "Unexpected key"),
        (lambda: nn.Sequential(nn.Linear(3, 2)), "Missing key"),
        (nn.ReLU, "Unexpected key"),
    ],
)
def test_another_architecture_is_refused_by_name(other: Callable[[], nn.Module], message: str) -> None:
    name = type(other()).__name__
    with pytest.raises(InvalidInput, match=f"the saved weights do not fit {name}: .*") as caught:
        unpack(pack(nn.Linear(3, 2)), other())
    assert message in str(caught.value)
