"""Layouts over the parts of layers that partners hold train as a single process does."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from torch import nn

from sparkdl.cluster.inline import InlineCluster
from sparkdl.errors import InvalidInput
from sparkdl.training.layouts.mesh import Mesh
from sparkdl.training.layouts.pipelined import Pipelined
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.layouts.sharded import Sharded
from sparkdl.training.layouts.tensor_parallel import TensorParallel
from tests.contracts import work
from tests.contracts.layout_contract import LayoutContract, OnFourWorkers, assert_close, resumable, resume
from tests.contracts.strategy_contract import Case, numbers
from tests.results import merged
from tests.training.layouts.test_pipelined import PipelinedContract
from tests.training.layouts.test_tensor_parallel import halves


def inner(module: nn.Module) -> Mapping[str, str]:
    """The pairs of ``halves``; of other models, one layer within a stage by rows of the batch."""
    names = dict(module.named_modules())
    return {"before.0": "batch"} if "before.0" in names else halves(module)


class TestShardedMesh(OnFourWorkers, LayoutContract):
    layout = Mesh(Sharded(), TensorParallel(2, inner))
    model = work.Net
    partners = alike = 2


class TestPipelinedMesh(OnFourWorkers, PipelinedContract):
    layout = Mesh(Pipelined(2, split=("head",)), TensorParallel(2, inner))
    alike = 2


PAIRS = {"hidden": "columns", "head": "rows"}
LAYOUTS = [
    ("alone", Replicated()),
    *(("pair", layout) for layout in (Sharded(units=("*",)), TensorParallel(2, PAIRS), Pipelined(2, split=("head",)))),
    *(("four", layout) for layout in (Mesh(Sharded(), TensorParallel(2, PAIRS)), TestPipelinedMesh.layout)),
]


@pytest.mark.slow
def test_a_run_resumes_from_each_layout_under_each_other_one(pair, four, tmp_path):
    """Each epoch has another layout; a step has all rows, so that its gradient is that of any number of workers."""
    clusters = {"pair": pair, "four": four, "alone": InlineCluster()}
    order = [*itertools.chain.from_iterable(itertools.combinations(LAYOUTS, 2)), LAYOUTS[0]]
    assert len({(repr(one), repr(other)) for one, other in itertools.pairwise(order)}) == len(LAYOUTS) * 5
    settings: dict[str, Any] = {"model": work.Net}
    for epochs, (name, layout) in enumerate(order, start=1):
        settings["epochs"] = epochs
        weights = resume(clusters[name], resumable(tmp_path / "run", "AdamW", layout, **settings))
    assert_close(weights, resume(InlineCluster(), resumable(tmp_path / "whole", "AdamW", Replicated(), **settings)))


def test_stages_are_cut_before_partners_exchange_in_their_layers(four):
    """The copies of layers that were timed had the partners' process group."""
    case = Case(partial(nn.Sequential, nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0)), epochs=2)
    layout = Mesh(Pipelined(2), TensorParallel(2, {"0": "columns", "2": "rows"}))
    results = (four.gang(case.training(layout=one), numbers(), case.columns()) for one in (Replicated(), layout))
    expected, actual = map(merged, results)
    assert_close(actual, expected)


def test_initial_weights_belong_to_the_outer_layout():
    with pytest.raises(InvalidInput, match=r"expected it in Mesh\.outer"):
        Mesh(Sharded(), TensorParallel(2, {"hidden": "columns"}, init="modules"))
