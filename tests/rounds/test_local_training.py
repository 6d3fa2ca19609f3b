"""Training on one shard alone: the order of its rows, the learning rate of a round, clipping, and solvers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.local_tasks import ShardedData
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.sampler import Plan, generator
from sparkdl.errors import InvalidInput
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.evaluate import as_only_shard
from sparkdl.rounds.local_solvers import ConjugateGradient
from sparkdl.rounds.local_training import LocalTraining, toward
from sparkdl.rounds.loop import Rounds
from sparkdl.training.objective.objective import Objective
from tests.contracts.algorithm_contract import data, shards_of, states

RATE = 0.05
ROUNDS = 4
V = np.array([3.0, -1.0, 0.0, 2.0, -5.0])


def objective(**options: object) -> Objective:
    sgd = partial(torch.optim.SGD, lr=RATE)
    return Objective(partial(nn.Linear, 4, 1), nn.MSELoss(), sgd, precision="fp64", **options)


def gradient(x: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
    """Gradient of the rows' mean squared error with respect to the weights and the bias, in numpy."""
    arrays = {name: array[rows] for name, array in data().items()}
    inputs, w = np.c_[arrays["x"], np.ones(len(arrays["y"]))], arrays["w"]
    return 2 * inputs.T @ (w * (inputs @ x - arrays["y"])) / w.sum()


def vector(weights: dict[str, torch.Tensor]) -> np.ndarray:
    return torch.cat([weights["weight"].detach().flatten(), weights["bias"].detach()]).numpy().copy()


def steps(number: int, batch_size: int, epochs: int) -> list[np.ndarray]:
    """The rows of each step of shard 0 in a round."""
    plan = Plan((90,), batch_size, generator(3, 0, number).initial_seed())
    return [rows.numpy() for epoch in range(epochs) for rows in plan.permutation(0, epoch).long().split(batch_size)]


def test_scheduler_steps_once_per_round_and_every_step_is_clipped():
    """The scheduler steps neither once per step, of which a round has six, nor once per epoch."""
    halved = partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
    algorithm = ParallelSGD(rounds=ROUNDS, epochs=2, shard_batch_size=30)
    first, *others = states(algorithm, shards_of(90), ROUNDS, objective(scheduler=halved, max_grad_norm=0.5))
    x = vector(first["weights"])
    for number, state in enumerate(others):
        for rows in steps(number, 30, 2):
            g = gradient(x, rows)
            assert np.linalg.norm(g) > 0.5
            x = x - RATE * 0.5**number * g * 0.5 / (np.linalg.norm(g) + 1e-6)
        assert np.allclose(vector(state["weights"]), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("most", "strength"), [(0.25, 0.0), (0.25, 4.0), (100.0, 0.0)])
def test_gradient_is_clipped_with_its_pull(most, strength):
    minimised, [shard] = objective(max_grad_norm=most), shards_of(90)
    torch.manual_seed(0)
    module = minimised.build()
    before = vector(module.state_dict())
    pull = toward(torch.from_numpy(V), strength) if strength else None
    LocalTraining(1, 100, 0, (3, 0), pull).train(minimised, module, as_only_shard(shard, minimised.criterion()))
    g = gradient(before) + strength * (before - V)
    expected = RATE * g * min(1.0, most / (np.linalg.norm(g) + 1e-6))  # as in torch
    assert np.linalg.norm(g) > 0.5
    assert np.allclose(before - vector(module.state_dict()), expected, rtol=1e-10)


seen = set[torch.dtype]()


class Seen(nn.Linear):
    """Notes the dtypes of its outputs in training mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = super().forward(x)
        if self.training:
            seen.add(output.dtype)
        return output


def test_bf16_computes_steps_under_autocast_and_keeps_weights_in_float32():
    columns = Columns((InputColumn("x"),), InputColumn("y"))
    shards = ShardedData({name: data()[name] for name in ("x", "y")}, columns, 2).shards()
    given = replace(objective(), model=partial(Seen, 4, 1))
    seen.clear()
    half, single = (
        states(ParallelSGD(shard_batch_size=30), shards, 4, replace(given, precision=precision))[-1]
        for precision in ("bf16", "fp32")
    )
    assert seen == {torch.bfloat16, torch.float32}
    assert half["weights"]["weight"].dtype == torch.float32
    torch.testing.assert_close(half["weights"], single["weights"], rtol=0.05, atol=0.02)
    assert not torch.equal(half["weights"]["weight"], single["weights"]["weight"])


def test_micro_batches_give_the_step_of_the_batch():
    algorithm, sizes, results = ParallelSGD(rounds=2, epochs=2, shard_batch_size=30), {}, {}
    for count in (1, 4):
        counted.clear()
        given = replace(objective(micro_batches=count), model=partial(Counted, 4, 1))
        results[count] = states(algorithm, shards_of(90), 2, given)[-1]
        sizes[count] = max(counted)
    assert sizes == {1: 30, 4: 8}
    assert np.allclose(vector(results[1]["weights"]), vector(results[4]["weights"]), rtol=0, atol=1e-13)
    assert results[4]["loss"] == pytest.approx(results[1]["loss"], rel=1e-12)


counted = set[int]()


class Counted(nn.Linear):
    """Notes the rows of its inputs in training mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            counted.add(len(x))
        return super().forward(x)


def test_fp16_scales_the_loss_and_clips_gradients_that_are_not_scaled():
    """Gradients of 1e-7 become 0 in fp16 without a scale; with one, Adam's first steps are as long as in float32."""
    columns = Columns((InputColumn("x"),), InputColumn("y"))
    [shard] = ShardedData({name: data()[name] for name in ("x", "y")}, columns, 1).shards()
    adam = partial(torch.optim.Adam, lr=RATE, eps=1e-12)
    moved = {}
    for precision in ("fp16", "fp32"):
        given = objective(max_grad_norm=1e-3, tf32=True)
        given = replace(given, model=partial(Seen, 4, 1), loss=tiny, optimizer=adam, precision=precision)
        torch.manual_seed(0)
        module = given.build()
        before = vector(module.state_dict())
        seen.clear()
        with pytest.warns(UserWarning, match="tf32=True is ignored: only GPUs have TF32"):
            LocalTraining(1, 90, 0, (3, 0)).train(given, module, as_only_shard(shard, given.criterion()))
        assert seen == {torch.float16 if precision == "fp16" else torch.float32}
        moved[precision] = vector(module.state_dict()) - before
    assert np.allclose(moved["fp16"], moved["fp32"], rtol=0.02)
    assert np.allclose(abs(moved["fp16"]), RATE, rtol=0.01)


def tiny(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 1e-7 * (output.squeeze(-1) - target).float().square()


def test_inputs_and_weights_of_a_round_have_their_channels_last():
    images = {"x": np.random.default_rng(0).normal(size=(12, 3, 4, 4)).astype("float32"), "y": np.zeros(12, "float32")}
    columns = Columns((InputColumn("x", shape=(3, 4, 4)),), InputColumn("y"))
    shards = ShardedData(images, columns, 1).shards()
    given = Objective(Filters, nn.MSELoss(), channels_last=True)
    states(ParallelSGD(shard_batch_size=6), shards, 1, given)
    assert layouts == {(True, True)}


layouts = set[tuple[bool, bool]]()


class Filters(nn.Conv2d):
    """Notes in training mode whether input and weights have their channels last in memory."""

    def __init__(self) -> None:
        super().__init__(3, 2, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            last = [one.is_contiguous(memory_format=torch.channels_last) for one in (x, self.weight)]
            layouts.add((last[0], last[1]))
        return super().forward(x).mean((1, 2, 3))


# ---- ConjugateGradient at the solution, and on losses that are not quadratic -----------------------------------------


FLOATING = {"fp32": "float32", "fp64": "float64"}
each_precision = pytest.mark.parametrize("precision", FLOATING)


SLOW = "columns of several scales"  # 60 rounds do not reach this solution; they raise nothing
LARGER = ["large targets", "targets far from 0", "noise alone", "constant targets", SLOW]


def regression(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Eleven variables with a noisy linear target; ``LARGER`` kinds enlarge the rounding errors."""
    random = np.random.default_rng(0)
    x, noise = random.normal(size=(1000, 11)), 0.5 * random.normal(size=1000)
    y = x @ random.normal(size=11)
    return {
        "plain": (x, y + noise),
        "large targets": (x, 100 * (y + noise)),
        "targets far from 0": (x, y + noise + 1e4),
        "noise alone": (x, 100 * noise),
        SLOW: (x * np.logspace(-2, 1, 11), y + noise),
        "constant targets": (x, 0 * y),
    }[kind]


def run(folder, precision: str, loss: nn.Module, x, y, *, shards: int = 1, rounds: int = 60, model=None):
    """The weights after this many rounds of ADMM without tolerances."""
    columns = Columns((InputColumn("x"),), InputColumn("y"), floating=FLOATING[precision])
    objective = Objective(model or partial(nn.Linear, x.shape[1], 1), loss, precision=precision)
    algorithm = ConsensusADMM(solver=ConjugateGradient(), abs_tol=0, rel_tol=0)
    data = {"x": x.astype(FLOATING[precision]), "y": y.astype(FLOATING[precision])}
    with InlineCluster().map_reduce(data, columns, num_shards=shards) as jobs:
        state, history = Rounds(algorithm, objective, memories=str(folder), max_rounds=rounds).run(jobs)
    assert len(history) == rounds or algorithm.converged(state)
    return state["weights"]


@each_precision
@pytest.mark.parametrize("kind", ["plain", *LARGER])
def test_rounds_at_the_solution_stay_there(tmp_path, precision, kind):
    """With one shard and no penalty, v becomes the solution."""
    x, y = regression(kind)
    weights = run(tmp_path, precision, nn.MSELoss(), x, y)
    expected = np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)[0]
    atol = {"fp32": 1e-4, "fp64": 1e-9}[precision] * max(1.0, float(np.abs(y).max()))
    solution = np.append(weights["weight"].flatten().numpy(), float(weights["bias"]))
    assert kind == SLOW or np.allclose(solution, expected, atol=atol)


@each_precision
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (nn.L1Loss(), lambda y: y),
        (nn.SmoothL1Loss(beta=0.01), lambda y: y),
        (nn.HuberLoss(), lambda y: y),
        (nn.BCEWithLogitsLoss(), lambda y: (y > 0).astype(float)),
        (nn.PoissonNLLLoss(), lambda y: np.floor(np.exp(y / 4))),
    ],
    ids=str,
)
def test_loss_that_is_not_quadratic_raises_in_first_round(tmp_path, precision, shards, loss, target):
    x, y = regression("plain")
    with pytest.raises(InvalidInput, match=r"shard \d in round 1: the loss is not quadratic .* solver=NewtonCG\(\)"):
        run(tmp_path, precision, loss, x, target(y), shards=shards, rounds=5)


def test_network_raises_in_first_round(tmp_path):
    """It was a RuntimeError of torch: the first graphs were used after the parameters had changed."""

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(11, 3), nn.Linear(3, 1))

    with pytest.raises(InvalidInput, match=r"shard \d in round 1: the loss is not quadratic"):
        run(tmp_path, "fp64", nn.MSELoss(), *regression("plain"), model=network)
