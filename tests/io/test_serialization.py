"""States as bytes: values come back bit-identical, others raise with their path, damage is detected."""

from __future__ import annotations

import copy
import json
import math
import pickle
import random
import struct
from collections import Counter, OrderedDict, defaultdict
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import Tensor, nn

from sparkdl.errors import InvalidInput
from sparkdl.io import serialization
from sparkdl.io.serialization import pack_state, unpack_state

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.complex64, torch.complex128),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]


def same(one, two):
    """Whether two states are bit-identical, types included."""
    if type(one) is not type(two):
        return False
    if isinstance(one, Tensor):
        return (one.dtype, one.shape) == (two.dtype, two.shape) and raw(one) == raw(two)
    if isinstance(one, (np.ndarray, np.generic)):
        return (one.dtype, one.shape, one.tobytes()) == (two.dtype, two.shape, two.tobytes())
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", two)
    return bool(one == two)


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def returned(value):
    return unpack_state(pack_state(value))


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, -1, 2**63, -(2**63), 2**64 + 1, -(10**5000), 1, 1.0, 0.1, -0.0, 5e-324, 1.8e308),
        *(math.inf, -math.inf, math.nan, "", "ä\0\ud800\n", "state", b"", b"\0\xff" * 9),
        *([], (), {}, [[]], ([],), {"": {}}, {0: 1, "0": 2, -(10**5000): 3}, {"b": 1, "a": 2}),
        *(np.float32(0.1), np.int64(-5), np.bool_(True), np.complex128(1 - 2j)),
        *(np.array(3, ">i2"), np.zeros((0, 3)), np.arange(6, dtype="<u4").reshape(2, 3).T),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_come_back_as_they_were(value):
    assert same(returned(value), value)
    assert same(returned({"at": [value, (value,)]}), {"at": [value, (value,)]})


def test_one_value_comes_back_from_a_tensor_of_any_stride():
    """A worker's slice of one row had the stride of its tensor, and torch refused to see its bytes."""
    assert returned(torch.arange(24.0).view(2, 12)[:1, 3].clone()).tolist() == [3.0]
    assert returned(torch.empty_strided((1, 1), (24, 7)).fill_(2.0)).tolist() == [[2.0]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4)], ids=str)
def test_tensors_come_back_as_they_were(dtype, shape):
    bits = torch.randint(0, 2 if dtype == torch.bool else 256, (math.prod(shape) * 16,), dtype=torch.uint8)
    tensor = bits[: math.prod(shape) * torch.empty((), dtype=dtype).element_size()].view(dtype).reshape(shape)
    assert same(returned({"x": tensor})["x"], tensor)


def test_views_come_back_dense_and_shared_tensors_once():
    matrix = torch.arange(24.0).reshape(4, 6)
    pairs = torch.view_as_complex(matrix.reshape(12, 2))
    views = [matrix, matrix.T, matrix[1:3], matrix[:, ::2], matrix[0], torch.zeros(1).expand(5), pairs.conj(), matrix]
    actual = returned(views)
    for tensor, view in zip(actual, views, strict=True):
        assert tensor.is_contiguous()
        assert torch.equal(tensor, view)
    assert actual[0] is actual[-1]
    shared = torch.zeros(10_000)
    assert len(pack_state([shared] * 5)) < 50_000


def test_related_types_become_plain():
    actual = returned([OrderedDict(b=1, a=2), defaultdict(list, x=[1]), Counter({3: 2}), nn.Parameter(torch.ones(2))])
    assert [type(value) for value in actual] == [dict, dict, Counter, Tensor]
    assert actual[:3] == [{"b": 1, "a": 2}, {"x": [1]}, Counter({3: 2})]
    assert not actual[3].requires_grad


def test_tensors_of_all_dtypes_come_back_from_one_state_and_equal_states_give_equal_bytes():
    counts = [torch.arange(length).to(dtype) for length, dtype in enumerate(DTYPES)]
    state = {"counts": counts, 7: {"arrays": (np.arange(5), b"12345", np.float32(0.5)), "none": [None, {}]}}
    assert same(returned(state), state)
    assert pack_state(state) == pack_state(copy.deepcopy(state)) == pack_state(returned(state))


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


def test_other_types_raise_with_their_path():
    for state, message in [
        ({"optimizer": {"state": {0: {"x": object()}}}}, r"^optimizer\.state\[0\]\.x is of type object"),
        ([1, (2, {3})], r"^\[1\]\[1\] is of type set"),
        (len, "^the state is of type builtin_function_or_method"),
        ({"n": IntEnum("Number", "ONE").ONE}, "^n is of type Number"),
        ({"a": np.array([None])}, "^a is of type ndarray of object"),
        ({"a": np.array(["x"])}, "^a is of type ndarray of <U1"),
        ({"a": {(1, 2): 3}}, r"^a has the key \(1, 2\) of type tuple; expected str or int"),
        ({"a": {True: 3}}, "^a has the key True of type bool"),
        ({"a": torch.eye(2).to_sparse()}, "^a is a torch.sparse_coo tensor"),
        ({"a": torch.empty(2, device="meta")}, "^a is a torch.strided tensor of float32 on meta"),
        ({"a": torch.empty(2, dtype=torch.bits8)}, "^a is a .* tensor of bits8"),
        ({"a": torch.Size([1])}, "^a is of type Size"),
        (CYCLE, "nested too deeply, or holds itself"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            pack_state(state)


STATE = {"weights": torch.arange(40.0), "steps": [1, 2, 3], "name": "net", "random": np.arange(7), "best": 0.25}


@pytest.mark.parametrize("seed", range(20))
def test_changed_byte_raises_or_changes_nothing(seed):
    draw, packed = random.Random(seed), pack_state(STATE)
    for _ in range(60):
        damaged = bytearray(packed)
        damaged[draw.randrange(len(packed))] ^= draw.randint(1, 255)
        try:
            actual = unpack_state(bytes(damaged))
        except InvalidInput:
            continue
        assert same(actual, STATE)  # such as a space of the header


def test_truncated_and_foreign_bytes_raise():
    packed = pack_state(STATE)
    foreign = [b"\0" * 100, b"\xff" * 100, pickle.dumps(STATE), save({"x": torch.ones(1)}), packed + b"\0"]
    for data in (*(packed[:length] for length in range(len(packed))), *foreign):
        with pytest.raises(InvalidInput, match="the saved state cannot be read"):
            unpack_state(data)


def forged(tree, *tensors):
    """Bytes with a correct checksum around any JSON."""
    text = tree if isinstance(tree, str) else json.dumps(tree)
    named = {str(number): tensor for number, tensor in enumerate(tensors)}
    return save(named, {"state": f"{serialization._checksum(text, tensors):08x}{text}"})


@pytest.mark.parametrize(
    "tree",
    [
        *("", "{", "[" * 100_000, '{"list": [' * 50_000, [], {}, {"a": 1, "b": 2}, {"object": "os.system"}),
        *({"tensor": [7]}, {"tensor": [0, "qint8", [4]]}, {"tensor": [0, "complex64", [9]]}, {"tensor": []}),
        *({"array": [0, "O", [1]]}, {"array": [0, "V8", [1]]}, {"array": [0, "<f8", [10**30]]}, {"array": [0]}),
        *({"dict": [[None, 1]]}, {"dict": [[{"list": []}, 1]]}, {"dict": 3}, {"float": "1"}, {"int": "x"}),
    ],
    ids=lambda tree: str(tree)[:30],
)
def test_forged_bytes_raise(tree):
    with pytest.raises(InvalidInput):
        unpack_state(forged(tree, torch.zeros(8, dtype=torch.uint8)))
