"""Workers that hold stages of a model train as a single process does."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparkdl.cluster.group.world import World
from sparkdl.data.sampler import Plan
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.layouts.pipelined import Pipelined
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.layouts.stages.cut_model import stages_of
from sparkdl.training.layouts.stages.cuts import best_cuts
from sparkdl.training.strategies.local_sgd import LocalSGD
from tests.contracts import work
from tests.contracts.layout_contract import (
    LAYOUT_CASES,
    Fails,
    LayoutContract,
    OnFourWorkers,
    OnTwoWorkers,
    assert_close,
    resumable,
    resume,
)
from tests.contracts.strategy_contract import ADAM, Case, numbers
from tests.results import merged

# Their models have control flow, layers that no stage calls, weights of two stages, or a stage without trained ones.
OTHERS = (
    *("parameters for a few rows", "parameters for a few rows, Adam", "unused parameters", "tied weights"),
    "frozen parameters",
)


class Mask(nn.Module):
    """Dropout of ones, which shows the masks that a worker draws."""

    def __init__(self, seen: list[np.ndarray]) -> None:
        super().__init__()
        self.seen = seen

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.functional.dropout(torch.ones(64, dtype=x.dtype), 0.5, self.training)
        if self.training and torch.is_grad_enabled():  # the first pass tells shapes alone
            self.seen.append(mask.numpy())
        return x * mask.mean()


class Masks(nn.Sequential):
    """A mask in a stage of each worker."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []
        super().__init__()
        self.before, self.hidden = nn.Sequential(nn.Linear(3, 8), Mask(self.seen)), nn.Linear(8, 8)
        self.between = nn.Sequential(nn.Tanh(), nn.Linear(8, 8))
        self.head = nn.Sequential(nn.Linear(8, 1), Mask(self.seen), nn.Flatten(0))


class Stumble(nn.Module):
    """Raises on one rank in one forward pass in training."""

    def __init__(self, rank: int, step: int) -> None:
        super().__init__()
        self.rank, self.step, self.passes = rank, step, 0

    def forward(self, x: Tensor) -> Tensor:
        if int(os.environ["RANK"]) == self.rank and self.passes == self.step:
            raise ArithmeticError("stumbled over a row")
        self.passes += self.training and torch.is_grad_enabled()  # the first pass tells shapes alone
        return x


class Stumbles(nn.Sequential):
    def __init__(self, rank: int, step: int) -> None:
        super().__init__()
        self.before, self.hidden = nn.Sequential(nn.Linear(3, 8), Stumble(rank, step)), nn.Linear(8, 8)
        self.between = nn.Linear(8, 8)
        self.head = nn.Sequential(nn.Linear(8, 1), Stumble(rank, step), nn.Flatten(0))


class FourLayers(work.Net):
    """A layer for each of four stages."""

    def __init__(self, outputs: int = 0) -> None:
        super().__init__(outputs=outputs)
        self.before, self.between = nn.Linear(3, 3), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        output = self.head(torch.tanh(self.between(self.hidden(self.before(x)))))
        return output.squeeze(-1) if self.squeezed else output


class FourConstant(work.Constant, FourLayers):
    """Four layers, and buffers."""


class PipelinedContract(OnTwoWorkers, LayoutContract):
    cases = tuple(name for name in LAYOUT_CASES if name not in OTHERS)
    model = work.Net
    tied = work.Net
    masks = Masks
    stumbles = Stumbles

    def test_batch_statistics_are_averaged_by_rows(self, cluster):
        """Pipelines refuse them."""
        with pytest.raises(InvalidInput, match="norm is batch normalisation"):
            self.fit(cluster, Case(work.Normalised))


@pytest.mark.slow
class Test1F1B(PipelinedContract):
    layout = Pipelined(2, split=("head",))


@pytest.mark.slow
class TestGPipe(PipelinedContract):
    layout = Pipelined(2, "gpipe", split=("head",))
    cases = PipelinedContract.cases[-3:]


@pytest.mark.slow
class TestInterleaved(PipelinedContract):
    layout = Pipelined(2, "interleaved", split=("hidden", "between", "head"), chunks=2)
    model = tied = FourLayers
    models: ClassVar[Mapping[Any, Any]] = {
        work.Net: FourLayers,
        work.Classifier: partial(FourLayers, outputs=4),
        work.Constant: FourConstant,
    }

    def case(self, case: Case) -> Case:
        return replace(super().case(case), accumulate=4 if case.accumulate == 3 else case.accumulate)

    def test_micro_batches_are_a_multiple_of_the_stages(self):
        objective = Case(accumulate=3).training().objective
        with pytest.raises(InvalidInput, match="microBatches is 3, and schedule is 'interleaved' on 2 stages"):
            self.layout.check(objective, FourLayers(), 2)


class TestPipelinedReplicas(OnFourWorkers, PipelinedContract):
    layout = Pipelined(2, split=("head",))
    cases = PipelinedContract.cases[-3:]


# ---- chunks, cuts and models -----------------------------------------------------------------------------------------


class Deep(nn.Sequential):
    """Layers with a buffer, and weights that one stage uses twice."""

    def __init__(self) -> None:
        tied = nn.Linear(6, 6)
        twice = nn.Sequential(tied, nn.Tanh(), nn.Linear(6, 6))
        twice[2].weight = tied.weight
        super().__init__(nn.Linear(3, 6), nn.Tanh(), twice, nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 1), Shift())


class Shift(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        shifted: Tensor = x.squeeze(-1) + self.offset
        return shifted


LAYOUTS = [
    Pipelined(2, "interleaved", split=("2", "4", "5"), chunks=2),
    Pipelined(2),
    Pipelined(2, max_bytes=1200),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["interleaved", "best cuts", "cuts of small stages"])
def test_pipelines_train_as_whole_models_do(pair, layout):
    case = Case(Deep, optimizer=ADAM, weight="weight", batch_size=11, epochs=3, accumulate=4, max_grad_norm=0.5)
    expected, actual = (
        pair.gang(case.training(layout=one), numbers(), case.columns()) for one in (Replicated(), layout)
    )
    assert_close(merged(actual), merged(expected))
    assert actual[0].history[-1]["loss"] == pytest.approx(expected[0].history[-1]["loss"], rel=1e-9)


class Dropping(nn.Sequential):
    """Dropout in both stages."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5))
        self.head = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1), nn.Flatten(0))


def test_stages_resume_with_random_numbers_of_their_own(pair, tmp_path):
    """All stages went on with the random numbers of the first one."""
    settings = {"batch_size": 10, "model": Dropping}
    expected = resume(pair, resumable(tmp_path / "undisturbed", "AdamW", Test1F1B.layout, **settings))
    with pytest.raises(WorkerFailed, match="on purpose"):
        resume(pair, resumable(tmp_path / "run", "AdamW", Test1F1B.layout, callbacks=(Fails(8),), **settings))
    assert_close(resume(pair, resumable(tmp_path / "run", "AdamW", Test1F1B.layout, **settings)), expected, 0)


def test_cuts_are_the_best_of_all():
    random = np.random.default_rng(0)
    for layers, stages in itertools.product(range(1, 8), range(1, 5)):
        seconds, sizes = random.integers(1, 9, layers).tolist(), random.integers(1, 9, layers).tolist()
        trained = (random.random(layers) < 0.8).tolist()
        for most in (None, 12):
            valid = []
            for inner in itertools.combinations(range(1, layers), stages - 1):
                bounds = [*itertools.pairwise((0, *inner, layers))]
                if all(any(trained[a:b]) and (most is None or sum(sizes[a:b]) <= most) for a, b in bounds):
                    valid.append(max(sum(seconds[a:b]) for a, b in bounds))
            if layers < stages or not valid:
                with pytest.raises(InvalidInput):
                    best_cuts(seconds, sizes, stages, most, trained)
                continue
            cuts = (*best_cuts(seconds, sizes, stages, most, trained), layers)
            assert max(sum(seconds[a:b]) for a, b in itertools.pairwise(cuts)) == min(valid)


class Awkward(nn.Sequential):
    """A module that runs twice, layers that work in place, and an output that is not contiguous."""

    def __init__(self) -> None:
        relu = nn.ReLU(inplace=True)
        super().__init__(
            *(nn.Linear(3, 8), relu, nn.Unflatten(1, (2, 4)), Transposed(), nn.Linear(2, 8), relu),
            *(nn.Flatten(), nn.Linear(32, 1), nn.Flatten(0)),
        )


class Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


@pytest.mark.parametrize("first", ["4", "5", None])
def test_repeated_modules_operations_in_place_and_transposed_outputs(pair, first):
    case = Case(Awkward, optimizer=ADAM, batch_size=11, epochs=2, accumulate=2)
    layout = Pipelined(2, split=None if first is None else (first,))
    results = (pair.gang(case.training(layout=one), numbers(), case.columns()) for one in (Replicated(), layout))
    expected, actual = map(merged, results)
    assert_close(actual, expected)


def test_momentum_of_local_steps_resumes_on_each_stage(four, tmp_path):
    """A strategy numbers its tensors, and a number is another parameter on each stage."""
    layout, strategy = Pipelined(2, split=("head",)), LocalSGD.slowmo(every=2)
    settings = {"batch_size": 8, "model": work.Net, "strategy": strategy}
    expected = resume(four, resumable(tmp_path / "undisturbed", "momentum", layout, **settings))
    with pytest.raises(WorkerFailed, match="on purpose"):
        resume(four, resumable(tmp_path / "run", "momentum", layout, callbacks=(Fails(9),), **settings))
    assert_close(resume(four, resumable(tmp_path / "run", "momentum", layout, **settings)), expected, 0)


def test_a_resume_keeps_the_cuts():
    objective = Case(Deep).training().objective
    feed = Feed(Plan((1,), 1), saved=lambda: {"stages": ["4"]})
    assert Pipelined(2)._firsts(objective, Deep(), World(), feed) == ["4"]


class Skips(work.Net):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x)
        return self.head(torch.tanh(hidden)).squeeze(-1) + hidden.sum(-1)


class Swapped(work.Net):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(self.hidden(y) + x)


class Optional(work.Net):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = self.hidden(x)
        return self.head(hidden if mask is None else hidden * mask)


class Overridden(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(2 * x)


def test_a_sequence_with_its_own_forward_needs_names_of_modules():
    model = Overridden(nn.Linear(3, 4), nn.Linear(4, 1))
    with pytest.raises(InvalidInput, match=r"expected an nn\.Sequential, or names"):
        Pipelined(2).check(Case().training().objective, model, 2)


@pytest.mark.parametrize(
    ("model", "firsts", "message"),
    [
        (work.Tied, ["second"], "the stages share 'first.weight'"),
        (work.Gated, ["head"], "cannot be traced: TraceError"),
        (work.Masks, ["head"], "something else in training"),
        (work.Unused, ["head"], "no stage calls the modules of 'spare.weight', 'spare.bias'"),
        (work.Net, ["hiden"], "does not call hiden"),
        (Skips, ["head"], "does not get one tensor"),
        (Deep, ["4", "2"], "does not call 2|names of children in their order"),
        (Swapped, ["head"], "does not use the inputs in their order"),
        (Optional, ["head"], "has optional arguments"),
        (partial(nn.Sequential, nn.Flatten(), nn.Linear(3, 1)), ["1"], "stage 0 has no trained parameter"),
    ],
)
def test_models_that_cannot_be_cut_raise(model: Any, firsts, message):
    with pytest.raises(InvalidInput, match=message):
        stages_of(model(), firsts)
