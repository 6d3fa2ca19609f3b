"""Weights in files are ordinary safetensors files, which processes copy once and map privately."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save
from torch import nn
from torch.nn import functional as F

from sparkdl.errors import InvalidInput
from sparkdl.io import weights_file
from sparkdl.io.serialization import NATIVE
from sparkdl.io.weights import pack, unpack
from sparkdl.io.weights_file import WeightsFile, assign, copy_to, layout_of, read_weights
from sparkdl.serving.scorer import restored
from sparkdl.training.objective.module_factory import new_module


class Tied(nn.Module):
    """Tied weights, buffers of both kinds, and a forward pass that writes to a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.score = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)
        self.score.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("steps", torch.ones(3), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.norm.bias.add_(1.0)
        return self.score(self.norm(self.embed(ids)))


def stored(folder: Path, module: nn.Module) -> WeightsFile:
    return WeightsFile.write(str(folder / "weights.safetensors"), [pack(module)])


def test_header_is_that_of_the_library() -> None:
    named = [(f"{prefix} \u00e9 {name}", dtype) for prefix in "ab" for dtype, name in NATIVE.items()]
    tensors = {name: torch.ones(3, 2).to(dtype) for name, dtype in named}
    tensors |= {"empty": torch.zeros(0, 3), "scalar": torch.tensor(1.0)}
    header, names = layout_of({key: (one.dtype, tuple(one.shape)) for key, one in tensors.items()}, {"aliases": "{}"})
    expected = save(tensors, {"aliases": "{}"})
    assert expected.startswith(header)
    assert [*json.loads(header[8:])] == ["__metadata__", *names]


def test_mapped_module_scores_like_one_with_bytes(tmp_path: Path) -> None:
    trained, ids = Tied(), torch.arange(50)
    file = stored(tmp_path, trained)
    assert load_file(file.uri).keys() == read_weights(file).keys() - {"score.weight"}
    assert {"weights.safetensors"} == {path.name for path in tmp_path.iterdir()}
    mapped, copied = new_module(Tied, parameters=False), Tied()
    assign(mapped, read_weights(file))
    unpack(file.read(), copied)
    assert mapped.score.weight is mapped.embed.weight
    assert all(value.data_ptr() % 64 == 0 for value in mapped.state_dict().values())
    assert mapped.steps.tolist() == [1.0] * 3
    for module in (mapped, copied):  # the second call sees what the first one wrote
        expected = Tied()
        unpack(pack(trained), expected)
        for _ in range(2):
            assert torch.equal(module.eval()(ids), expected.eval()(ids))
    assert file.read() == pack(trained)


class Shares(nn.Module):
    """Holds its weight in a list and in a partial function too; ``early`` before the module registers it."""

    def __init__(self, *, early: bool) -> None:
        super().__init__()
        weight = nn.Parameter(torch.rand(3, 2))
        self.weight = weight
        self.listed = [weight if early else self.weight]
        self.head = partial(F.linear, weight=self.listed[0])

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(rows) + F.linear(rows, self.weight)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("instance", [True, False])
def test_other_references_to_a_parameter_see_the_mapped_weights(tmp_path: Path, early: bool, instance: bool) -> None:
    trained, rows = Shares(early=early), torch.rand(4, 2)
    factory = Shares(early=early) if instance else partial(Shares, early=early)
    module = new_module(factory, parameters=False)
    assign(module, read_weights(stored(tmp_path, trained)))
    assert module.listed[0] is module.weight
    assert torch.equal(module(rows), trained(rows))


class Views(nn.Module):
    """Holds views of a buffer and of a weight, and the graph of ``weight_norm``."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.rand(4))
        self.half, self.same = self.get_buffer("table")[:2], [self.get_buffer("table").detach()]
        self.layer = nn.Linear(3, 2)
        self.row = [self.layer.weight.detach()[:1]]
        self.normed = nn.utils.weight_norm(nn.Linear(3, 2))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.normed(rows) + self.layer(rows) + rows @ self.row[0].T + self.half + self.same[0][2:]


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_module_with_views_of_its_tensors_scores_like_one_with_bytes(tmp_path: Path) -> None:
    trained, rows = Views(), torch.rand(4, 3)
    scores = [restored(Views, weights, "fp32")(rows) for weights in (stored(tmp_path, trained), pack(trained))]
    assert torch.equal(*scores)
    assert torch.equal(scores[0], trained(rows))


class Recurrent(nn.Module):
    """An LSTM, which torch gives weak references, with another reference to one of its weights if ``held``."""

    def __init__(self, *, held: bool) -> None:
        super().__init__()
        self.rnn, self.tied = nn.LSTM(3, 4), nn.LSTM(3, 4)
        self.tied.weight_hh_l0 = self.rnn.weight_hh_l0
        self.listed = [self.rnn.weight_hh_l0] if held else []


@pytest.mark.parametrize("held", [False, True])
def test_recurrent_module_is_mapped_unless_a_weight_is_in_use_elsewhere(tmp_path: Path, held: bool) -> None:
    trained, rows = Recurrent(held=held), torch.rand(5, 2, 3)
    file = stored(tmp_path, trained)
    assert assign(new_module(partial(Recurrent, held=held), parameters=False), read_weights(file)) is not held
    module: Any = restored(partial(Recurrent, held=held), file, "fp32")
    assert all(map(torch.equal, module.state_dict().values(), trained.state_dict().values()))
    for expected, layer in ((trained.rnn, module.rnn), (trained.tied, module.tied)):
        assert torch.equal(layer(rows)[0], expected(rows)[0])


def test_original_may_be_overwritten_and_truncated_while_a_copy_is_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, mapped = Tied(), new_module(Tied, parameters=False)
    file = stored(tmp_path, trained)
    monkeypatch.setattr(weights_file, "_shared_folder", [])
    copy_to(str(tmp_path / "executor"))
    copy = file.local_copy()
    assign(mapped, read_weights(copy))
    Path(file.uri).write_bytes(b"\0" * file.size)
    Path(file.uri).write_bytes(b"")
    assert torch.equal(mapped.embed.weight, trained.embed.weight)
    assert file.local_copy() == copy == copy.local_copy()
    copy_to(str(tmp_path / "another"))
    with pytest.raises(InvalidInput, match=r"weights.safetensors have changed since the model was made; expected"):
        file.local_copy()
    Path(file.uri).unlink()
    with pytest.raises(InvalidInput, match=r"no file .*weights.safetensors: the model.s weights are gone, or hosts"):
        file.read()
    assert {path.suffix for path in (tmp_path / "another").iterdir()} == {".lock"}


def test_damaged_file_raises(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"no weights")
    with pytest.raises(InvalidInput, match="the saved weights cannot be read"):
        read_weights(WeightsFile.of(str(path)))
    with pytest.raises(InvalidInput, match="the saved weights do not fit Linear"):
        assign(nn.Linear(1, 1), read_weights(stored(tmp_path, Tied())))
