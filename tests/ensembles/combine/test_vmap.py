"""Members in one pass: stacked or one by one, what comes out is what each of them gives."""

from __future__ import annotations

from functools import partial

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.data.batch import Ragged
from sparkdl.ensembles.combine.rules import Combining
from sparkdl.ensembles.combine.vmap import VmapEnsemble, VmapFactory, _probe, same_architecture
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack
from sparkdl.ml.inference.batch_size import batch_rows
from sparkdl.ml.inference.model_cache import CachedModel
from sparkdl.ml.inference.scorer import score
from sparkdl.ml.persistence.export import Program, export
from tests.ml import nets

X = torch.from_numpy(np.random.default_rng(0).normal(size=(300, 6))).float()


def seeded(make, count=4):
    """Members of different weights, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        members = []
        for seed in range(count):
            torch.manual_seed(seed)
            members.append(make().eval())
    return members


def perceptron():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def normalised():
    layers = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
    layers.train()(torch.randn(64, 6))  # running means of its own
    return layers


class Tied(nn.Module):
    """A weight that is used twice."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).relu())


class Choosy(nn.Module):
    """Looks at a number of its own in Python, which vmap does not take."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x):
        return self.inner(x) if float(self.inner.bias.sum()) > 0 else -self.inner(x)


class Writing(nn.Module):
    """Writes to what it is given."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x):
        return self.inner(x.add_(1))


class Bag(nn.Module):
    """Takes rows of several lengths."""

    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(10, 3, mode="mean")

    def forward(self, values, offsets):
        return self.table(values, offsets)


class Masked(nn.Module):
    """Takes rows of several lengths, padded."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 3)

    def forward(self, values, mask):
        return (self.table(values) * mask.unsqueeze(-1)).sum(1)


class Two(nn.Module):
    """Two inputs."""

    def __init__(self):
        super().__init__()
        self.table, self.inner = nn.Embedding(5, 3), nn.Linear(6, 3)

    def forward(self, x, kind):
        return self.inner(x) + self.table(kind)


def each(members, *inputs):
    with torch.inference_mode():
        return torch.stack([member(*(tensor.clone() for tensor in inputs)) for member in members])


def together(members, *inputs, rule="soft"):
    """The outputs of all, and the module that gave them; the first batch decides how, the second is looked at."""
    module = VmapEnsemble(members, Combining(rule, (1.0,) * len(members)))
    with torch.inference_mode():
        module.outputs(*(tensor.clone() for tensor in inputs))
        return module.outputs(*(tensor.clone() for tensor in inputs)), module


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [perceptron, normalised, Tied], ids=["perceptron", "batch norm", "tied"])
def test_members_of_one_architecture_are_stacked(make, dtype):
    members, x = [member.to(dtype) for member in seeded(make)], X.to(dtype)
    expected = each(members, x)
    found, module = together(members, x)
    assert module.stacked
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(found[0], found[1])


def test_several_inputs_are_stacked():
    inputs = X, torch.arange(300) % 5
    found, module = together(seeded(Two), *inputs)
    torch.testing.assert_close(found, each(seeded(Two), *inputs), rtol=1e-5, atol=1e-6)
    assert module.stacked


@pytest.mark.slow
@pytest.mark.parametrize("make", [Choosy, Writing], ids=["control flow", "writes"])
def test_what_vmap_does_not_take_goes_one_by_one(make):
    expected = each(seeded(make), X)
    found, module = together(seeded(make), X)
    assert not module.stacked
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


class Sensitive(nn.Module):
    """Magnifies what rounding makes of its input: vmap and the members are far apart for large values."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x):
        found = self.inner(x)
        return found if x.abs().max() < 2 else found + torch.rand_like(found)


class Wary(nn.Module):
    """Looks at its numbers in Python where its input is large."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x):
        return self.inner(x) if x.abs().max() < 2 else self.inner(x) * float(self.inner.bias.abs().sum())


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 1e6, torch.inf, torch.nan])
def test_the_way_does_not_depend_on_the_data(scale):
    for make in (Sensitive, perceptron):
        assert together(seeded(make), X * scale)[1].stacked
    for make in (Choosy, Writing):
        assert not together(seeded(make), X * scale)[1].stacked


def test_a_batch_that_vmap_refuses_goes_one_by_one_by_itself():
    small, large = X / X.abs().max(), X * 100
    for first, second in ((small, large), (large, small)):
        module = VmapEnsemble(seeded(Wary), Combining("soft", (1.0,) * 4))
        with torch.inference_mode():
            for x in (first, second):
                torch.testing.assert_close(module.outputs(x), each(seeded(Wary), x), rtol=1e-5, atol=1e-6)
        assert module.stacked


@pytest.mark.parametrize("rows", [1, 7])
def test_what_is_tried_has_the_form_of_the_data_alone(rows):
    inputs = [
        torch.rand(rows, 3),
        torch.rand(rows, dtype=torch.float64),
        torch.full((rows, 2), 9),
        torch.zeros(rows) > 0,
    ]
    found = [_probe(one) for one in inputs]
    assert [(one.shape, one.dtype) for one in found] == [((2, *one.shape[1:]), one.dtype) for one in inputs]
    np.testing.assert_allclose(found[0], np.sin(np.arange(1, 7)).reshape(2, 3), rtol=1e-6)
    assert [found[2].tolist(), found[3].tolist()] == [[[0, 1], [0, 1]], [True, True]]


def test_members_that_do_not_take_what_is_tried_go_one_by_one():
    tables = seeded(partial(nn.Embedding, 1, 3))  # there is no index 1
    found, module = together(tables, torch.zeros(5, dtype=torch.int64))
    assert not module.stacked
    assert found.shape == (4, 5, 3)


@pytest.mark.slow
def test_exported_programs_go_one_by_one():
    archives = [Program(export(one, (X[:2],))) for one in seeded(perceptron, 3)]
    module = VmapFactory(tuple((one, b"") for one in archives), Combining("soft", (1.0,) * 3), "fp32")()
    assert not module.stacked
    with torch.inference_mode():
        torch.testing.assert_close(module.outputs(X), each(seeded(perceptron, 3), X), rtol=1e-5, atol=1e-6)


def test_a_member_that_writes_to_its_input_leaves_it_to_the_next():
    module = VmapEnsemble(seeded(Writing), Combining("soft", (1.0,) * 4))
    with torch.inference_mode():
        torch.testing.assert_close(module._one_by_one(X.clone()), each(seeded(Writing), X))


@pytest.mark.parametrize("make", [Bag, Masked])
def test_rows_of_several_lengths(make):
    lengths = torch.randint(1, 6, (40,))
    bounds = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    rows = Ragged(torch.randint(0, 10, (int(bounds[-1]),)), bounds, None if make is Bag else 0)
    members = seeded(make)
    with torch.inference_mode():
        expected = torch.stack([score(CachedModel(member), (rows,)) for member in members])
        module = VmapEnsemble(members, Combining("soft", (1.0,) * 4))
        found = score(CachedModel(module), (rows,))
    torch.testing.assert_close(found, expected.double().softmax(-1).sum(0), rtol=1e-5, atol=1e-6)


def test_architectures_that_differ_go_one_by_one():
    members = [*seeded(perceptron, 2), *seeded(normalised, 1), nn.Linear(6, 3)]
    found, module = together(members, X)
    assert not module.stacked
    assert module.models_at_once == 1
    torch.testing.assert_close(found, each(members, X))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (nn.Linear(3, 2), nn.Linear(3, 4)),
        (nn.Linear(3, 2), nn.Linear(3, 2, bias=False)),
        (nn.Linear(3, 2), nn.Linear(3, 2).double()),
        (nn.Linear(3, 2), nn.Bilinear(3, 3, 2)),
        (nn.LeakyReLU(0.1), nn.LeakyReLU(0.2)),
        (nn.Sequential(nn.ReLU()), nn.Sequential(nn.Tanh())),
        (nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU(), nn.ReLU())),
        (nets.Scaled(4, 1.0), nets.Scaled(4, 2.0)),
        (nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False)),
    ],
)
def test_architectures_are_told_apart(one, other):
    assert not same_architecture(one, other)
    assert same_architecture(one, one)


def test_values_are_no_architecture():
    for make in (perceptron, normalised, Tied, nets.Images, nets.Connections, nets.Scaled):
        one, other = seeded(make, 2)
        assert same_architecture(one, other)


def test_an_attribute_that_cannot_be_compared_is_another_architecture():
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    one.table, other.table = np.zeros(3), np.zeros(3)
    assert not same_architecture(one, other)


def test_the_weights_are_there_once():
    members = seeded(normalised)
    before = [{name: tensor.clone() for name, tensor in member.state_dict().items()} for member in members]
    module = VmapEnsemble(members, Combining("soft", (1.0,) * 4))
    parameters, buffers = module._state
    for index, member in enumerate(module.members):
        torch.testing.assert_close(dict(member.state_dict()), before[index], rtol=0, atol=0)
        for tensors, kept in ((member.named_parameters(), parameters), (member.named_buffers(), buffers)):
            for name, tensor in tensors:
                assert tensor.untyped_storage().data_ptr() == kept[name].untyped_storage().data_ptr()


def test_one_member_is_not_stacked():
    found, module = together(seeded(perceptron, 1), X)
    assert not module.stacked
    torch.testing.assert_close(found, each(seeded(perceptron, 1), X), rtol=0, atol=0)


@pytest.mark.slow
def test_convolutions_are_asked_one_by_one():
    images = torch.randint(0, 255, (5, 28, 28), dtype=torch.uint8)
    found, module = together(seeded(nets.Images, 2), images)
    assert not module.stacked
    torch.testing.assert_close(found, each(seeded(nets.Images, 2), images), rtol=0, atol=0)


def test_all_members_count_where_memory_is_measured():
    """Under vmap a tensor shows the size that it has for one member."""

    def rows(members):
        loaded = CachedModel(VmapEnsemble(members, Combining("soft", (1.0,) * len(members))))
        return batch_rows(lambda piece: loaded.module(X[piece]), (X,), at_once=lambda: loaded.at_once, budget=1 << 20)

    make = partial(nets.mlp, 6, 64, outputs=3)
    one, four = rows(seeded(make, 1)), rows(seeded(make, 4))
    assert one == (1 << 20) // (64 * 4)
    assert four == one // 4
    assert CachedModel(perceptron()).at_once == 1


def test_an_assembly_travels_and_makes_its_members_again():
    members = seeded(partial(nets.mlp, 6, 16, outputs=3), 3)
    for index, member in enumerate(members):
        member[0].weight.data += index
    packed = tuple((partial(nets.mlp, 6, 16, outputs=3), pack(member)) for member in members)
    assembly = cloudpickle.loads(cloudpickle.dumps(VmapFactory(packed, Combining("hard", (1.0, 1.0, 1.0)), "fp32")))
    module = assembly()
    torch.testing.assert_close(module.outputs(X), each(members, X), rtol=1e-5, atol=1e-6)
    assert not any(member.training for member in module.members)


def test_an_error_of_a_member_is_its_own():
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        together(seeded(perceptron), X[:, :5])

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 3)

        def forward(self, x):
            return self.inner(x), x

    with pytest.raises(InvalidInput, match="a member's model returned tuple; expected one tensor"):
        together(seeded(Pair), X)
