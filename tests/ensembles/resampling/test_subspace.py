"""Random subspaces: the features of a member, and PyTorch models with zeros for all others."""

from __future__ import annotations

import json
import math
from functools import partial

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.ensembles.resampling.subspace import Masked, MaskedFactory, Subspace, masked, masks, max_features
from sparkdl.errors import InvalidInput
from sparkdl.io.pickling import ship
from sparkdl.io.weights import pack, unpack
from sparkdl.serving.format.export import export
from sparkdl.serving.format.factory import Trust
from sparkdl.serving.format.param_values import allowed_types
from tests.ml import nets

THREE = [([3], "float32")]
IMAGE = [([2, 3], "float32"), ([], "float64"), ([4], "int64")]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        *((None, None), ("all", None), ("sqrt", "sqrt"), ("log2", "log2")),
        *((1, 1), (7, 7), (np.int64(3), 3), (0.5, 0.5), (1.0, 1.0), (np.float32(0.5), 0.5)),
    ],
)
def test_values_of_max_features(given, found):
    assert max_features(given) == found
    assert type(max_features(given)) is type(found)


@pytest.mark.parametrize("given", ["cbrt", "", 0, -1, 0.0, 1.5, -0.1, math.nan, math.inf, True, False, [1], 1j])
def test_invalid_values_of_max_features_raise(given):
    with pytest.raises(InvalidInput, match=r"maxFeatures is .*; expected one of sqrt, log2, or .*, or None"):
        max_features(given)
    with pytest.raises(InvalidInput, match="expected"):
        Subspace(given, 0)


@pytest.mark.parametrize(
    ("size", "features", "taken"),
    [
        *(("sqrt", 1, 1), ("sqrt", 10, 3), ("sqrt", 16, 4), ("log2", 1, 1), ("log2", 3, 1), ("log2", 1024, 10)),
        *((0.5, 7, 3), (0.01, 7, 1), (1.0, 7, 7), (0.29, 100, 29), (0.7, 10, 7), (1, 7, 1), (7, 7, 7)),
    ],
)
def test_number_of_features(size, features, taken):
    indices = Subspace(size, 3).indices(features)
    assert len(indices) == taken
    assert indices == sorted({*indices} & {*range(features)})
    assert all(type(index) is int for index in indices)


@pytest.mark.parametrize(("size", "features"), [(None, 7), ("all", 7), (8, 7), (1, 0), ("sqrt", 0), (0.5, 0)])
def test_impossible_numbers_of_features_raise(size, features):
    with pytest.raises(InvalidInput, match=f"the data has {features} features|Subspace.size is {size!r}; expected"):
        Subspace(size, 0).indices(features)


def test_seed_chooses_the_features():
    assert len({tuple(Subspace("sqrt", seed).indices(100)) for seed in range(50)}) == 50
    assert Subspace(3, 0).indices(10) == [5, 6, 9]  # stored members depend on it


def test_masks_count_the_numbers_of_all_floating_point_inputs():
    image, number, kinds = masks(Subspace(3, 1), IMAGE)
    assert kinds is None
    assert (image.shape, number.shape) == ((2, 3), ())
    seen = torch.cat([image.reshape(-1), number.reshape(-1)])
    assert seen.nonzero().flatten().tolist() == Subspace(3, 1).indices(7)
    with pytest.raises(InvalidInput, match="no input of the model is floating-point"):
        masked(nets.scores, Subspace(1, 0), [([3], "int64")])


class Pair(nn.Module):
    def forward(self, x, kind):
        return x.sum(1) + kind


def test_hidden_features_have_no_effect():
    subspace = Subspace(2, 4)
    module = masked(nets.scores, subspace, THREE)()
    (hidden,) = set(range(3)) - set(subspace.indices(3))
    x = torch.randn(5, 3)
    plain = x.clone()
    plain[:, hidden] = 0
    for value in (1.0, math.nan, math.inf, 1e30):
        x[:, hidden] = value
        assert torch.equal(module(x), nets.scores()(plain))
    module(x).sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in module.parameters())
    pair = masked(Pair(), Subspace(1, 0), [*THREE, ([], "int64")])
    assert pair(torch.ones(2, 3), torch.tensor([5, 7])).tolist() == [6, 8]


def test_pickle_has_a_shared_module_once():
    shared = nets.mlp(3, 1000, outputs=1)
    modules = [masked(shared, Subspace(1, seed), THREE) for seed in range(8)]
    assert len(ship(modules)) < 1.5 * len(ship(shared))
    visible = [module.seen_0.nonzero().flatten().tolist() for module in modules]
    assert visible == [Subspace(1, seed).indices(3) for seed in range(8)]


def wide(sizes: tuple[int, ...]) -> nn.Module:
    assert isinstance(sizes, tuple)
    return nn.Linear(*sizes)


@pytest.mark.parametrize("factory", [nets.scores, partial(nets.mlp, 3, 8, outputs=2)])
def test_named_factories_are_described_by_name(factory):
    made = masked(factory, Subspace("sqrt", 7), THREE)
    types = allowed_types("model")
    description = json.loads(json.dumps(types.describe(made)))
    expected = {name: value.tolist() for name, value in made().state_dict().items()}
    for module in (
        types.resolve(description, Trust(modules=("tests",)))(),
        cloudpickle.loads(cloudpickle.dumps(made))(),
    ):
        assert {name: value.tolist() for name, value in module.state_dict().items()} == expected


@pytest.mark.parametrize("factory", [lambda: nn.Linear(3, 2), partial(wide, (3, 2))])
def test_other_factories_still_build_modules(factory):
    """A factory without a name, and one with a tuple, which JSON would turn into a list."""
    made = masked(factory, Subspace(1, 0), THREE)
    assert isinstance(made, MaskedFactory)
    assert isinstance(made(), Masked)
    assert cloudpickle.loads(cloudpickle.dumps(made))()(torch.ones(2, 3)).shape == (2, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saved_weights_have_the_masks(dtype):
    module, other = (masked(nets.scores, Subspace(2, seed), THREE)().to(dtype) for seed in (4, 6))
    assert not torch.equal(module.seen_0, other.seen_0)
    unpack(pack(module), other)
    x = torch.randn(4, 3, dtype=dtype)
    assert torch.equal(module(x), other(x))
    assert module(x).dtype == dtype
    assert export(masked(nets.scores, Subspace(2, 4), THREE)().eval(), (torch.rand(2, 3),))
