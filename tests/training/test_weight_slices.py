"""The weights that workers return in slices are the bytes of ``pack``."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl.checkpoint.part_folder import PartFolder
from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.cluster.group.world import World
from sparkdl.io.merged_weights import merge_files, merge_weights
from sparkdl.io.serialization import unpack_state
from sparkdl.io.weights import Slice, pack
from sparkdl.io.weights_file import WeightsFile
from sparkdl.training.layouts import Workers
from sparkdl.training.layouts.passes import ModuleReplica
from sparkdl.training.objective.objective import Objective
from sparkdl.training.weight_slices import pack_weights, weight_slices, weights_of


class Everything(nn.Module):
    """Tied, frozen, scalar and empty parameters, buffers, and extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.score = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.score.weight = self.embed.weight
        self.norm, self.frozen = nn.BatchNorm1d(5), nn.Linear(5, 3).requires_grad_(False)
        self.scale, self.empty = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.zeros(0, 3))
        self.register_buffer("phase", torch.ones(2, dtype=torch.complex64))

    def get_extra_state(self) -> Any:
        return {"seen": 3}

    def set_extra_state(self, state: Any) -> None:
        pass


def part(replica: ModuleReplica, rank: int, size: int) -> bytes:
    group: Any = SimpleNamespace(rank=rank, size=size)
    slices = weight_slices(replica, group)
    return b"".join(pack_weights(weights_of(replica, slices, rank, copy=False), slices))


def merged(parts: list[bytes], folder: Path) -> tuple[bytes, WeightsFile]:
    """The parts merged in memory, and from files, twice."""
    writer = PartFolder(SharedDirectory(str(folder / "parts")), str(folder / "tables"))
    files = [writer.part(writer.write(f"{number}", [packed])) for number, packed in enumerate(parts)]
    file, again = (merge_files(files, str(folder / "run"), writer.rows) for _ in range(2))
    assert file == again == WeightsFile.of(file.uri)
    return merge_weights(parts), file


@pytest.mark.parametrize("size", [1, 2, 3, 12])
def test_parts_of_workers_merge_to_the_bytes_of_pack(size: int, tmp_path: Path) -> None:
    module = Everything()
    replica = ModuleReplica(Objective(module, nn.MSELoss()), module, Workers.of(World()))
    packed = [part(replica, rank, size) for rank in range(size)]
    weights, file = merged(packed, tmp_path)
    assert weights == file.read() == pack(module)
    values = [sum(tensor.numel() for tensor in unpack_state(one)["parameters"].values()) for one in packed]
    scalar, parameters = 1, sum(parameter.numel() for parameter in module.parameters())
    assert sum(values) == parameters + scalar * (size - 1)  # which has no empty slice


class Rows(ModuleReplica):
    """Holds every second row of one weight alone."""

    def __init__(self, module: nn.Module, whole: torch.Tensor, rank: int) -> None:
        super().__init__(Objective(module, nn.MSELoss()), module, Workers.of(World()))
        part = Slice(tuple(whole.shape), (range(rank, len(whole), 2), range(whole.shape[1])))
        self.slices = {"embed.weight": part, 0: part}
        module.get_submodule("embed").weight = nn.Parameter(whole[part.index].clone())
        module.get_submodule("score").weight = module.get_submodule("embed").weight


def test_slices_of_a_layout_merge_as_well(tmp_path: Path) -> None:
    module = Everything()
    whole, expected = module.embed.weight.detach().clone(), pack(module)
    weights, file = merged([part(Rows(module, whole, rank), rank, 2) for rank in range(2)], tmp_path)
    assert weights == file.read() == expected
