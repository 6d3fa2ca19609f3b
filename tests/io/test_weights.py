"""Weights become safetensors bytes and come back bit-identical."""

import itertools
import json
import struct

import pytest
import torch
from safetensors.torch import save
from torch import nn

from sparkdl.errors import InvalidInput
from sparkdl.io.weights import Slice, check_result, check_weights, pack, read_state, unpack


class Tied(nn.Module):
    """Two names for one weight, and a third for its transpose."""

    def __init__(self, tied=True):
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.register_buffer("turned", self.embedding.weight.detach().t())


class Mixed(nn.Module):
    """Buffers of every kind beside the weights, some of them in the same memory."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4).bfloat16())
        self.wide = nn.Parameter(torch.randn(5).double())
        self.scalar = nn.Parameter(torch.randn(()))
        self.none = nn.Parameter(torch.randn(0, 3))
        self.register_buffer("count", torch.tensor(2**60 + 1))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("columns", torch.randn(4, 5).t())  # not contiguous
        self.register_buffer("bits", self.wide.detach().view(torch.int64))  # the same memory as another dtype
        self.register_buffer("phase", torch.randn(2, dtype=torch.complex128).conj())
        self.register_buffer("small", torch.ones(2, dtype=torch.float8_e5m2))
        self.register_buffer("empty", torch.empty(0))
        self.register_buffer("also_empty", torch.empty(0))
        self.register_buffer("unsaved", torch.zeros(2), persistent=False)


def norm():
    linear = nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))
    module = nn.Sequential(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.Flatten(), linear)
    module(torch.randn(5, 3, 2, 2))
    return module


@pytest.mark.parametrize("make", [lambda: nn.Linear(3, 2), Tied, Mixed, norm, nn.ReLU])
def test_weights_come_back_bit_identical(make):
    for seed in range(3):
        torch.manual_seed(seed)
        module, loaded = make(), make()
        packed = pack(module)
        assert list(read_state(packed)) == sorted(module.state_dict())
        unpack(packed, loaded)
        for name, tensor in module.state_dict().items():
            assert loaded.state_dict()[name].dtype == tensor.dtype
            assert loaded.state_dict()[name].tolist() == tensor.tolist()
        assert pack(loaded) == packed


def test_tied_weights_are_written_once_and_stay_tied():
    module, loaded, loose = Tied(), Tied(), Tied(tied=False)
    packed = pack(module)
    (length,) = struct.unpack("<Q", packed[:8])
    assert set(json.loads(packed[8 : 8 + length])) == {"__metadata__", "embedding.weight", "turned"}
    assert module.head.weight is module.embedding.weight
    assert module.head.weight.requires_grad
    unpack(packed, loaded)
    assert loaded.head.weight is loaded.embedding.weight
    unpack(packed, loose)
    for weight in (loaded.head.weight, loose.head.weight, loose.embedding.weight):
        assert torch.equal(weight, module.embedding.weight)


class Extra(nn.Module):
    """A module with extra state."""

    def __init__(self, extra=None):
        super().__init__()
        self.extra = extra

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


class Unloadable(nn.Module):
    def get_extra_state(self):
        return 1


def with_buffer(buffer):
    module = nn.Module()
    module.register_buffer("buffer", buffer)
    return module


@pytest.mark.parametrize(
    "extra", [torch.ones(2), None, 0.5, "a", b"a", [], {"a": [1, (2, None)], 3: torch.eye(2) * 1j}]
)
def test_extra_state_comes_back(extra):
    module, loaded = nn.Sequential(Extra(extra)), nn.Sequential(Extra())
    check_weights(module)
    unpack(pack(module), loaded)
    assert repr(loaded[0].extra) == repr(extra)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Sequential(Extra({"seen": {1, 2}})), "0._extra_state.seen is of type set; expected tensors"),
        (lambda: Extra(nn.ReLU()), "_extra_state is of type ReLU"),
        (lambda: nn.Sequential(Unloadable()), "0 is a Unloadable, which has get_extra_state; expected set_extra_state"),
        (lambda: with_buffer(torch.eye(2).to_sparse()), "buffer is a torch.sparse_coo tensor"),
        (lambda: with_buffer(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)), "buffer is .* of quint8"),
    ],
)
def test_weights_that_cannot_be_returned_are_found_at_once(make, message):
    with pytest.raises(InvalidInput, match=message):
        check_weights(make())


def test_weights_above_the_driver_s_limit_raise():
    check_result(nn.Linear(1, 1), 900_000, 1_000_000)
    check_result(nn.Linear(1, 1), 900_001, None)
    with pytest.raises(InvalidInput, match=r"the weights of Linear have 0.900001 MB, .* of 1 MB. Set runDir, so"):
        check_result(nn.Linear(1, 1), 900_001, 1_000_000)


def aliased(aliases):
    return save({"embedding.weight": torch.zeros(6, 4), "turned": torch.zeros(4, 6)}, {"aliases": aliases})


def test_truncated_and_foreign_bytes_raise():
    for packed, message in [
        *((pack(Tied())[:length], "") for length in (0, 1, 7, 8, 9, 40, -1)),
        *((data, "") for data in (b"nonsense", b"\0" * 100, b"PK\x03\x04" + b"x" * 100)),
        (aliased('{"head.weight": "nobody"}'), ".*nobody"),
        (aliased("[1]"), ".*items"),
        (aliased("not json"), ".*Expecting"),
        (aliased("3"), ".*items"),
    ]:
        with pytest.raises(InvalidInput, match=f"the saved weights cannot be read: {message}"):
            unpack(packed, Tied())


def test_other_architecture_raises():
    for loaded, message in [
        (nn.Linear(3, 3), "size mismatch for weight"),
        (nn.Linear(3, 2, bias=False), "Unexpected key"),
        (nn.Sequential(nn.Linear(3, 2)), "Missing key"),
        (nn.ReLU(), "Unexpected key"),
    ]:
        expected = f"(?s)the saved weights do not fit {type(loaded).__name__}: .*{message}"
        with pytest.raises(InvalidInput, match=expected):
            unpack(pack(nn.Linear(3, 2)), loaded)


def slices_of(length: int) -> list[range]:
    """Ranges of a dimension, with steps and without, empty ones included."""
    plain = [range(start, stop) for start in range(length + 1) for stop in range(start, length + 1)]
    return plain + [range(start, length, step) for step in (2, 3) for start in range(step)]


@pytest.mark.timeout(60)
def test_overlap_of_two_slices_copies_the_values_that_indexing_finds():
    whole = torch.arange(1, 22).view(7, 3)
    slices = [Slice((7, 3), (rows, columns)) for rows in slices_of(7) for columns in (range(3), range(1, 3), range(2))]
    for mine, saved in itertools.product(slices, repeat=2):
        wanted = torch.zeros_like(whole)
        wanted[saved.index] = whole[saved.index]
        copied, overlap = torch.zeros(mine.sizes, dtype=whole.dtype), mine.overlap(saved)
        if overlap is not None:
            copied[overlap[0]] = whole[saved.index][overlap[1]]
        assert torch.equal(copied, wanted[mine.index])


def test_slices_compose():
    whole = torch.arange(24).view(8, 3)
    for rows, columns in itertools.product(slices_of(8), slices_of(3)[:10]):
        outer = Slice((8, 3), (rows, columns))
        inner = Slice(outer.sizes, (range(len(rows))[1::2], range(len(columns))[:1]))
        assert torch.equal(whole[inner.within(outer).index], whole[outer.index][inner.index])
    assert Slice.whole((2, 3)).index == (slice(0, 2, 1), slice(0, 3, 1))
    assert Slice.whole(()).overlap(Slice.whole(())) == ((), ())
    with pytest.raises(InvalidInput, match=r"a slice of \[3\] cannot lie in one of \[2\]"):
        Slice.whole((3,)).within(Slice((4,), (range(2),)))
