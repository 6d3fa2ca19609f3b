"""Random subspaces: which features, and PyTorch models that are given zeros for the others."""

from __future__ import annotations

import json
import math
from functools import partial

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.ensembles.resampling.subspace import Masked, Subspace, masked, masked_module, masks, max_features
from sparkdl.errors import InvalidInput
from sparkdl.io.pickling import ship
from sparkdl.io.weights import pack, unpack
from sparkdl.ml.persistence.export import export
from sparkdl.ml.persistence.factory import describe, resolve
from tests.ml import nets

IMAGE = [([2, 3], "float32"), ([], "float64"), ([4], "int64")]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        *((None, None), ("all", None), ("sqrt", "sqrt"), ("log2", "log2")),
        *((1, 1), (7, 7), (np.int64(3), 3), (0.5, 0.5), (1.0, 1.0), (np.float32(0.5), 0.5)),
    ],
)
def test_what_a_param_says(given, found):
    assert max_features(given) == found
    assert type(max_features(given)) is type(found)


@pytest.mark.parametrize("given", ["cbrt", "", 0, -1, 0.0, 1.5, -0.1, math.nan, math.inf, True, False, [1], 1j])
def test_what_says_nothing_is_refused(given):
    with pytest.raises(InvalidInput, match=r"maxFeatures is .*; expected None or 'all', 'sqrt'"):
        max_features(given)


@pytest.mark.parametrize("size", [None, "all", "half", 0, 2.0])
def test_a_subspace_has_a_size(size):
    with pytest.raises(InvalidInput, match="expected"):
        Subspace(size, 0)


@pytest.mark.parametrize(
    ("size", "features", "taken"),
    [
        *(("sqrt", 1, 1), ("sqrt", 10, 3), ("sqrt", 16, 4), ("log2", 1, 1), ("log2", 3, 1), ("log2", 1024, 10)),
        *((0.5, 7, 3), (0.01, 7, 1), (1.0, 7, 7), (0.29, 100, 29), (0.7, 10, 7), (1, 7, 1), (7, 7, 7)),
    ],
)
def test_as_many_features_as_said(size, features, taken):
    found = Subspace(size, 3).indices(features)
    assert len(set(found)) == taken
    assert found == sorted(found)
    assert found[0] >= 0
    assert found[-1] < features
    assert all(type(index) is int for index in found)


def test_the_seed_decides():
    assert Subspace("sqrt", 5).indices(100) == Subspace("sqrt", 5).indices(100)
    assert len({tuple(Subspace("sqrt", seed).indices(100)) for seed in range(50)}) == 50
    assert Subspace(3, 0).indices(10) == [5, 6, 9]  # kept members depend on it


def test_each_feature_is_taken_as_often():
    taken = np.concatenate([Subspace(0.25, seed).indices(20) for seed in range(4000)])
    counts = np.bincount(taken, minlength=20)
    assert abs(counts - 1000).max() < 5 * (4000 * 0.25 * 0.75) ** 0.5


@pytest.mark.parametrize(("size", "features"), [(8, 7), (1, 0), ("sqrt", 0), (0.5, 0)])
def test_more_features_than_there_are_is_refused(size, features):
    with pytest.raises(InvalidInput, match=f"the data has {features} features"):
        Subspace(size, 0).indices(features)


def test_masks_count_the_numbers_of_all_floating_point_inputs():
    subspace = Subspace(3, 1)
    image, number, kinds = masks(subspace, IMAGE)
    assert image is not None
    assert number is not None
    assert kinds is None
    assert image.shape == (2, 3)
    assert number.shape == ()
    seen = torch.cat([image.reshape(-1), number.reshape(-1)])
    assert seen.nonzero().flatten().tolist() == subspace.indices(7)


def test_no_floating_point_input_is_refused():
    with pytest.raises(InvalidInput, match="no input of the model is floating-point"):
        masked(nets.scores, Subspace(1, 0), [([3], "int64")])


def test_what_is_not_seen_is_not_felt():
    subspace = Subspace(2, 4)
    module = masked(nets.scores, subspace, [([3], "float32")])()
    (hidden,) = set(range(3)) - set(subspace.indices(3))
    x = torch.randn(5, 3)
    plain = x.clone()
    plain[:, hidden] = 0
    assert torch.equal(module(x), nets.scores()(plain))
    for value in (math.nan, math.inf, 1e30):
        x[:, hidden] = value
        x.requires_grad_(False)
        assert torch.equal(module(x), nets.scores()(plain))
    module(x).sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in module.parameters())


def test_inputs_that_are_no_floating_point_numbers_are_seen_whole():
    class Pair(nn.Module):
        def forward(self, x, kind):
            return x.sum(1) + kind

    module = masked(Pair(), Subspace(1, 0), [([3], "float32"), ([], "int64")])
    assert module(torch.ones(2, 3), torch.tensor([5, 7])).tolist() == [6, 8]


def test_a_module_travels_once_for_all_members():
    given = nets.mlp(3, 1000, outputs=1)
    made = [masked(given, Subspace(1, seed), [([3], "float32")]) for seed in range(8)]
    assert all(isinstance(module, Masked) for module in made)
    assert len(ship(made)) < 1.5 * len(ship(given))
    seen = [each.state_dict()["seen_0"].nonzero().flatten().tolist() for each in made if isinstance(each, Masked)]
    assert seen == [Subspace(1, seed).indices(3) for seed in range(8)]


@pytest.mark.parametrize("factory", [nets.scores, partial(nets.mlp, 3, 8, outputs=2), partial(nets.mlp, 3, outputs=2)])
def test_a_factory_with_a_name_is_saved_by_name(factory):
    made = masked(factory, Subspace("sqrt", 7), [([3], "float32")])
    description = json.loads(json.dumps(describe(made)))
    again = resolve(description)()
    one = made()
    for module in (one, again, cloudpickle.loads(cloudpickle.dumps(made))()):
        assert {name: value.tolist() for name, value in module.state_dict().items()} == {
            name: value.tolist() for name, value in one.state_dict().items()
        }


def test_a_forged_description_is_refused():
    made = masked(nets.scores, Subspace(1, 0), [([3], "float32")])
    description = describe(made)
    description["args"][0]["path"] = "os:system"
    with pytest.raises(InvalidInput, match=r"os\.system"):
        resolve(description)()


def test_a_factory_without_a_name_still_makes_modules():
    made = masked(lambda: nn.Linear(3, 1), Subspace(1, 0), [([3], "float32")])
    assert isinstance(made(), Masked)
    assert cloudpickle.loads(cloudpickle.dumps(made))()(torch.ones(2, 3)).shape == (2, 1)
    with pytest.raises(InvalidInput, match="not plain JSON"):
        describe(made)


def wide(sizes: tuple[int, ...]) -> nn.Module:
    assert isinstance(sizes, tuple)
    return nn.Linear(*sizes)


def test_a_tuple_among_the_arguments_stays_one_in_training():
    made = masked(partial(wide, (3, 2)), Subspace(1, 0), [([3], "float32")])
    assert made.func is masked_module
    assert made()(torch.ones(1, 3)).shape == (1, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_saved_model_sees_what_it_was_trained_on(dtype):
    shapes = [([3], "float32")]
    module = masked(nets.scores, Subspace(2, 4), shapes)().to(dtype)
    other = masked(nets.scores, Subspace(2, 6), shapes)().to(dtype)
    assert not torch.equal(module.seen_0, other.seen_0)
    unpack(pack(module), other)
    x = torch.randn(4, 3, dtype=dtype)
    assert torch.equal(module(x), other(x))
    assert module(x).dtype == dtype


def test_a_masked_model_can_be_exported():
    assert export(masked(nets.scores, Subspace(2, 4), [([3], "float32")])().eval(), (torch.rand(2, 3),))


def test_members_can_be_stacked():
    shapes = [([3], "float32")]
    members = [masked(partial(nets.mlp, 3, outputs=2), Subspace(2, seed), shapes)() for seed in range(6)]
    parameters, buffers = torch.func.stack_module_state(members)
    x = torch.randn(5, 3)

    def call(weights, seen):
        return torch.func.functional_call(members[0], (weights, seen), (x,))

    found = torch.vmap(call)(parameters, buffers)
    torch.testing.assert_close(found, torch.stack([member(x) for member in members]))
