"""Members in one pass: stacked or one by one, with the outputs of each member."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.data.batch import Ragged
from sparkdl.ensembles.combine.rules import Combining
from sparkdl.ensembles.combine.vmap import VmapEnsemble, same_architecture
from sparkdl.errors import InvalidInput
from sparkdl.serving.batch_size import batch_rows
from sparkdl.serving.model_cache import CachedModel
from sparkdl.serving.scorer import score
from tests.ml import nets

X = torch.from_numpy(np.random.default_rng(0).normal(size=(300, 6))).float()
KINDS = torch.arange(300) % 5


def seeded(make, count=4):
    """Members with different weights, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        members = []
        for seed in range(count):
            torch.manual_seed(seed)
            members.append(make().eval())
    return members


def ensemble(members, rule="soft"):
    return VmapEnsemble(members, Combining(rule, (1.0,) * len(members)))


def perceptron():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def normalised():
    layers = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
    layers.train()(torch.randn(64, 6))  # each member has its own running means
    return layers


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).relu())


class Applied(nn.Module):
    """Applies a function to a layer from six numbers to three, and to the input."""

    def __init__(self, function):
        super().__init__()
        self.inner, self.function = nn.Linear(6, 3), function

    def forward(self, x):
        return self.function(self.inner, x)


def noisy(inner, x):
    return inner(x) if x.abs().max() < 2 else inner(x) + torch.rand_like(inner(x))


# vmap rejects Python's branches on a member's numbers, in every batch or in one of large inputs.
choosy = partial(Applied, lambda inner, x: inner(x) if float(inner.bias.sum()) > 0 else -inner(x))
wary = partial(Applied, lambda inner, x: inner(x) * (1 if x.abs().max() < 2 else float(inner.bias.abs().sum())))
writing = partial(Applied, lambda inner, x: inner(x.add_(1)))  # to its input
sensitive = partial(Applied, noisy)  # differs under vmap for large inputs
pair = partial(Applied, lambda inner, x: (inner(x), x))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.table = nn.Linear(6, 3), nn.Embedding(5, 3)

    def forward(self, x, kind):
        return self.inner(x) + self.table(kind)


def each(members, *inputs):
    with torch.inference_mode():
        return torch.stack([member(*(tensor.clone() for tensor in inputs)) for member in members])


def together(members, *inputs):
    """The outputs of all members and the module; the first batch decides the way, the second is returned."""
    module = ensemble(members)
    with torch.inference_mode():
        module.outputs(*(tensor.clone() for tensor in inputs))
        return module.outputs(*(tensor.clone() for tensor in inputs)), module


# ---- stacked ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [perceptron, normalised, Tied, Two])
def test_members_of_one_architecture_are_stacked(make, dtype):
    inputs = (X.to(dtype), KINDS) if make is Two else (X.to(dtype),)
    expected = each([member.to(dtype) for member in seeded(make)], *inputs)
    found, module = together([member.to(dtype) for member in seeded(make)], *inputs)
    assert module.stacked
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(found[0], found[1])


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 1e6, torch.inf, torch.nan])
def test_choice_does_not_depend_on_the_data(scale):
    for make in (sensitive, perceptron):
        assert together(seeded(make), X * scale)[1].stacked
    for make in (choosy, writing):
        assert not together(seeded(make), X * scale)[1].stacked


def test_batch_that_vmap_rejects_runs_one_by_one():
    small, large = X / X.abs().max(), X * 100
    for batches in ((small, large), (large, small)):
        module = ensemble(seeded(wary))
        with torch.inference_mode():
            for x in batches:
                torch.testing.assert_close(module.outputs(x), each(seeded(wary), x), rtol=1e-5, atol=1e-6)
        assert module.stacked


def test_stacked_weights_are_in_memory_once():
    members = seeded(normalised)
    before = [{name: tensor.clone() for name, tensor in member.state_dict().items()} for member in members]
    module = ensemble(members)
    parameters, buffers = module._state
    for index, member in enumerate(module.members):
        torch.testing.assert_close(dict(member.state_dict()), before[index], rtol=0, atol=0)
        for tensors, kept in ((member.named_parameters(), parameters), (member.named_buffers(), buffers)):
            for name, tensor in tensors:
                assert tensor.untyped_storage().data_ptr() == kept[name].untyped_storage().data_ptr()


def test_batch_size_counts_all_stacked_members():
    """Under vmap, a tensor shows the size that it has for one member."""

    def rows(members):
        loaded = CachedModel(ensemble(members))
        return batch_rows(lambda piece: loaded.module(X[piece]), (X,), at_once=lambda: loaded.at_once, budget=1 << 20)

    make = partial(nets.mlp, 6, 64, outputs=3)
    one, four = rows(seeded(make, 1)), rows(seeded(make, 4))
    assert one == (1 << 20) // (64 * 4)
    assert four == one // 4
    assert CachedModel(perceptron()).at_once == 1


# ---- one by one ------------------------------------------------------------------------------------------------------


IMAGES = torch.randint(0, 255, (5, 28, 28), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("members", "x"),
    [
        (lambda: seeded(choosy), X),
        (lambda: seeded(writing), X),
        (lambda: seeded(perceptron, 1), X),
        (lambda: [*seeded(perceptron, 2), *seeded(normalised, 1), *seeded(lambda: nn.Linear(6, 3), 1)], X),
        (lambda: seeded(nets.Images, 2), IMAGES),
        (lambda: seeded(partial(nn.Embedding, 1, 3)), torch.zeros(5, dtype=torch.int64)),  # the probe has index 1
    ],
    ids=["control flow", "writes", "single", "architectures", "convolutions", "probe fails"],
)
def test_members_run_one_by_one(members, x):
    found, module = together(members(), x)
    assert (module.stacked, module.models_at_once) == (False, 1)
    torch.testing.assert_close(found, each(members(), x), rtol=0, atol=0)


def test_ragged_rows():
    lengths = torch.randint(1, 6, (40,))
    bounds = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    rows = Ragged(torch.randint(0, 10, (int(bounds[-1]),)), bounds, None)
    members = seeded(partial(nn.EmbeddingBag, 10, 3))
    with torch.inference_mode():
        expected = torch.stack([score(CachedModel(member), (rows,)) for member in members])
        found = score(CachedModel(ensemble(members)), (rows,))
    torch.testing.assert_close(found, expected.double().softmax(-1).sum(0), rtol=1e-5, atol=1e-6)


# ---- architectures ---------------------------------------------------------------------------------------------------


def with_table():
    """A module with an attribute that has no plain equality."""
    module = nn.Linear(3, 2)
    module.table = np.zeros(3)
    return module


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *((nn.Linear(3, 2), other) for other in (nn.Linear(3, 4), nn.Linear(3, 2, bias=False), nn.Bilinear(3, 3, 2))),
        (nn.Linear(3, 2), nn.Linear(3, 2).double()),
        (nn.LeakyReLU(0.1), nn.LeakyReLU(0.2)),
        *((nn.Sequential(nn.ReLU()), nn.Sequential(*others)) for others in ([nn.Tanh()], [nn.ReLU(), nn.ReLU()])),
        (nets.Scaled(4, 1.0), nets.Scaled(4, 2.0)),
        (nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False)),
        (with_table(), with_table()),
    ],
)
def test_architectures_that_differ(one, other):
    assert not same_architecture(one, other)


def test_architecture_does_not_depend_on_weights():
    for make in (nets.Images, nets.Connections, nets.Scaled):
        assert same_architecture(*seeded(make, 2))


def test_errors_of_members():
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        together(seeded(perceptron), X[:, :5])
    with pytest.raises(InvalidInput, match="a member's model returned tuple; expected one tensor"):
        together(seeded(pair), X)
