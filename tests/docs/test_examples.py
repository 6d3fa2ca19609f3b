"""The files of docs/examples, which docs/design.md includes: each trains, and its result equals a built-in one's."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import replace
from functools import partial
from pkgutil import resolve_name
from typing import ClassVar
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from docs.examples.algorithm import GradientDescent
from docs.examples.layout import Recomputed
from docs.examples.reducer import HalfPrecision
from docs.examples.strategy import MeanGradient
from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.local_tasks import ShardedData
from sparkdl.rounds import is_algorithm
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.buckets import make_buckets
from tests import law
from tests.contracts import work
from tests.contracts.algorithm_contract import COLUMNS, ROWS, AlgorithmContract, data, states
from tests.contracts.strategy_contract import SAMPLE, Case, SynchronousContract, assert_equal, numbers
from tests.docs.pages import ROOT, read

PAGE = "docs/design.md"
MOST_NOUNS = 8
MOST_LINES = 50


def weights(cluster, case: Case, **settings) -> dict[str, np.ndarray]:
    """The trained parameters, equal on all workers, and the buffers of rank 0."""
    training = replace(case.training(AllReduce()), **settings)
    first, *others = cluster.gang(work.Fit(training), numbers(), case.columns())
    for worker in others:
        assert_equal(worker["parameters"], first["parameters"])
    return first["parameters"] | first["buffers"]


class TestMeanGradient(SynchronousContract):
    """On two workers it takes the steps of a single process, as ``AllReduce`` does."""

    strategy = MeanGradient()
    cases: ClassVar = ("SGD", "clipping", "weights", *SAMPLE)

    @pytest.fixture
    def cluster(self, pair):
        return pair


class TestGradientDescent(AlgorithmContract):
    algorithm = GradientDescent(lr=0.2, rounds=20)


@pytest.mark.parametrize("shards", [1, 3])
def test_algorithm_equals_parallel_sgd_with_shards_as_batches(shards):
    descent, averaging = GradientDescent(lr=0.05, rounds=8), ParallelSGD(rounds=8, shard_batch_size=ROWS)
    shards = ShardedData(data(), COLUMNS, shards).shards()
    descended, averaged = (states(algorithm, shards, 8) for algorithm in (descent, averaging))
    for actual, expected in zip(descended, averaged, strict=True):
        for name, tensor in expected["weights"].items():
            assert torch.allclose(actual["weights"][name], tensor, rtol=0, atol=1e-12)
    assert descent.converged(descended[-1])
    assert is_algorithm(descent)


class Blocks(nn.Sequential):
    """Three blocks that draw random numbers and normalise; the first counts its forward passes."""

    passes = 0

    def __init__(self) -> None:
        wide = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.5))
        super().__init__(wide, nn.BatchNorm1d(8), nn.Linear(8, 1), nn.Flatten(0))
        wide[0].register_forward_hook(self._count)

    def _count(self, *_) -> None:
        type(self).passes += 1


def test_layout_is_bit_identical_to_replicated(pair):
    case = Case(Blocks, batch_size=20, precision="fp32")
    assert_equal(weights(pair, case, layout=Recomputed()), weights(pair, case))
    assert_equal(weights(pair, case, layout=Recomputed(("0",))), weights(pair, case))


def test_layout_runs_blocks_again_in_the_backward_pass():
    passes, ends = [], []
    for settings in ({}, {"layout": Recomputed()}, {"layout": Recomputed(("2",))}):
        before = Blocks.passes
        ends.append(weights(InlineCluster(), Case(Blocks, batch_size=24, epochs=2), **settings))
        passes.append(Blocks.passes - before)
        assert_equal(ends[-1], ends[0])
    assert passes == [1 + 4, 1 + 8, 1 + 4]  # the first pass is the trial before the first step
    assert "1.running_mean" in ends[0]


def test_reducer_ends_near_the_weights_of_exact_sums(pair):
    for optimizer in (partial(torch.optim.SGD, lr=0.1), partial(torch.optim.Adam, lr=0.01)):
        case = Case(optimizer=optimizer, batch_size=12, precision="fp32")
        actual, exact = weights(pair, case, strategy=AllReduce(reduce=HalfPrecision())), weights(pair, case)
        assert_equal(actual, exact, 0.01)
        assert any((actual[name] != exact[name]).any() for name in exact)


def test_reducer_sends_half_the_bytes():
    (bucket,), sent = make_buckets([nn.Parameter(torch.ones(64))], 1 << 20), []
    group = Mock(size=2)  # two workers with the same gradients
    group.sum_.side_effect = lambda tensor, *, wait: sent.append((tensor.mul_(2).nbytes, wait)) or Mock()
    expected = bucket.buffer.normal_().clone() * 2
    HalfPrecision().open([bucket], group).start(bucket).wait()
    assert sent == [(bucket.buffer.nbytes // 2, False)]
    assert torch.allclose(bucket.buffer, expected, rtol=2**-8)


def test_strategy_needs_the_nouns_of_the_table_alone():
    table = read(PAGE).partition("## Nouns to know before writing a strategy")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| \[`?(sparkdl/\w[\w/]*)\.py`?\]", table, re.MULTILINE)
    nouns = {noun: path.removesuffix("/__init__").replace("/", ".") for noun, path in rows}
    assert 0 < len(nouns) <= MOST_NOUNS
    for noun, module in nouns.items():
        assert inspect.isclass(resolve_name(f"{module}:{noun}"))
    example = ast.parse(read("docs/examples/strategy.py"))
    assert not [node for node in ast.walk(example) if isinstance(node, ast.Import) and "sparkdl" in ast.unparse(node)]
    for node in ast.walk(example):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("sparkdl"):
            names = {alias.name for alias in node.names if inspect.isclass(resolve_name(f"{node.module}:{alias.name}"))}
            assert {nouns[name] for name in names} <= {node.module}


def test_page_quotes_all_examples_and_the_law():
    """Sphinx checks the lines that the page quotes: a warning is an error."""
    quoted = {line.partition("} ")[2] for line in read(PAGE).splitlines() if line.startswith("```{literalinclude}")}
    examples = {f"examples/{path.name}" for path in (ROOT / "docs/examples").glob("*.py")}
    assert quoted == examples | {"../tests/law.py", "../sparkdl/training/loop.py"}
    assert max(len(read(f"docs/{example}").splitlines()) for example in examples) <= MOST_LINES


def test_paths_on_the_page_exist():
    page = read(PAGE)
    for text, target in re.findall(r"\[`?([\w/]+\.\w+)`?\]\(([^)#]+)\)", page):
        assert (ROOT / "docs" / target).resolve() == ROOT / text
    paths = re.findall(r"[\w/.]*\w\.(?:py|md|svg)\b", page)
    assert len(paths) > 40
    assert [path for path in paths if not (ROOT / path).exists() and not (ROOT / "docs" / path).exists()] == []


def test_picture_has_every_room_of_the_law():
    drawn = set(re.findall(r"<text[^>]*class=\"room\"[^>]*>([\w/ ,]+)</text>", read("docs/images/rooms.svg")))
    rooms = {room.removeprefix("sparkdl.") for room in law.STANDS_ON}
    assert {name for text in drawn for name in re.split(r",\s*", text)} == rooms
