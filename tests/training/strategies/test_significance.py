"""Pushes of significant changes equal a serial simulation; what is kept back is bounded, and no gradient is lost."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl.errors import InvalidInput
from sparkdl.training.strategies.parameter_server.placement import portions
from sparkdl.training.strategies.parameter_server.significance import Residuals, Significance, pack, unpack
from sparkdl.training.strategies.parameter_server.strategy import ParameterServer
from tests.contracts import work
from tests.contracts.strategy_contract import ADAM, Case, assert_equal, numbers
from tests.training.strategies.serial import Trainee, assert_ends_as
from tests.training.strategies.test_local_sgd import fit
from tests.training.test_resume import CASES, Folder, assert_alike, run

PLAIN = Case(optimizer=partial(torch.optim.SGD, lr=0.05), batch_size=7, epochs=2)
FILTER = Significance(0.3)


@pytest.mark.parametrize("optimizer", [None, partial(torch.optim.Adagrad, lr=0.1, weight_decay=0.5)])
@pytest.mark.parametrize("every", [1, 2])
def test_filter_equals_a_serial_simulation(four, every, optimizer):
    """Four workers with local steps of SGD; residuals are steps of their own without weight decay, at epochs' ends."""
    workers = fit(four, PLAIN, ParameterServer(every=every, optimizer=optimizer, filter=FILTER))
    trainees = [Trainee(PLAIN, PLAIN.training()) for _ in workers]
    w = nn.Parameter(trainees[0].vector)
    served = (optimizer or PLAIN.optimizer)([w])
    rate = served.param_groups[0]["lr"]
    residuals, sums = [torch.zeros_like(w) for _ in workers], [torch.zeros_like(w) for _ in workers]
    rows = {name: torch.as_tensor(array) for name, array in numbers().items()}

    def exchange(threshold: float) -> None:
        served.param_groups[0]["weight_decay"] = (optimizer or PLAIN.optimizer).keywords.get("weight_decay", 0) * (
            inside > 0
        )
        w.grad = torch.zeros_like(w)
        for residual, u, seen in zip(residuals, sums, before, strict=True):
            residual.add_(u)
            u.zero_()
            passed = rate * residual.abs() > threshold * seen.abs() if threshold else residual != 0
            w.grad += residual * passed
            residual.mul_(~passed)
        served.step()
        for trainee in trainees:
            trainee.vector = w.detach()

    inside = 0
    for number, drawn in enumerate(zip(*(worker["steps"] for worker in workers), strict=True)):
        inside += 1
        before = [trainee.vector for trainee in trainees]  # a push replaces the last step of a block
        for trainee, u, first, mine in zip(trainees, sums, before, drawn, strict=True):
            trainee.step({name: column[torch.from_numpy(mine)] for name, column in rows.items()})
            u.add_(len(mine) / sum(map(len, drawn)) * (first - trainee.vector) / 0.05)
        if inside == every:  # else the push waits for the epoch's end
            exchange(0.3 / math.sqrt(number // every + 1))
            inside = 0
        if (number + 1) % 7 == 0:
            exchange(0.0)
            inside = 0
    assert_ends_as(workers, w.detach(), PLAIN)


def test_what_is_kept_back_is_bounded_and_all_of_it_is_pushed_at_last():
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(6, 3, generator=generator), torch.zeros(4)]
    shares = portions(weights, 2)
    residuals = Residuals(shares)
    pushed = [[torch.zeros_like(one) for one in part.cut(weights)] for part in shares]
    gradients = [torch.zeros_like(one) for one in weights]
    rates = [(0.1, 0.1), (0.2, 0.2)]
    for push in range(1, 20):
        steps = [torch.randn(one.shape, generator=generator) for one in weights]
        for total, step in zip(gradients, steps, strict=True):
            total.add_(step)
        sums = [[one.clone() for one in part.cut(steps)] for part in shares]
        fraction = FILTER.at(push) if push < 19 else 0.0
        residuals.filter(sums, [part.cut(weights) for part in shares], rates, fraction)
        for part, parts, kept, before in zip(shares, sums, residuals.values, pushed, strict=True):
            for (rate, _), one, residual, weight, total in zip(
                rates, parts, kept, part.cut(weights), before, strict=True
            ):
                assert bool((residual.abs() <= fraction * weight.abs()).all())
                assert not bool((one * residual).any())
                total.add_(rate * one)
    for part, before in zip(shares, pushed, strict=True):
        for (rate, _), actual, expected in zip(rates, before, part.cut(gradients), strict=True):
            torch.testing.assert_close(actual, rate * expected)


def test_changes_are_those_of_the_rate_at_which_gradients_came():
    """Gradients at the rate 0 change nothing; what was kept back at another rate is pushed for the last one."""
    weights = [torch.ones(3)]
    [shares] = portions(weights, 1)
    residuals, sums = Residuals([shares]), torch.zeros(3)

    def push(rate: float, push_rate: float, fraction: float) -> list[float]:
        sums.fill_(1.0)
        residuals.filter([[sums]], [weights], [(rate, push_rate)], fraction)
        return sums.tolist()

    assert push(0.0, 0.0, 1e-6) == [0.0] * 3
    assert push(0.5, 0.5, 0.6) == [0.0] * 3
    assert push(0.0, 0.0, 0.6) == [0.0] * 3
    assert push(0.0, 0.25, 0.0) == [2.0] * 3  # half of a gradient at the rate 0.5 is a change of 0.5
    assert not residuals.values[0][0].any()


def test_what_is_not_a_number_is_pushed():
    weights = [torch.ones(2)]
    [whole] = portions(weights, 1)
    sums = [[torch.tensor([math.nan, 1e-9])]]
    Residuals([whole]).filter(sums, [weights], [(0.1, 0.1)], 0.01)
    assert sums[0][0].isnan().tolist() == [True, False]
    assert sums[0][0][1] == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_packed_numbers_are_unpacked_into_their_own_memory(dtype):
    tensors = [torch.zeros(50, 3, dtype=dtype), torch.zeros(7, dtype=torch.float64), torch.zeros((), dtype=dtype)]
    tensors[0][[1, 4, 9], 2], tensors[1][5], tensors[2][...] = 1.5, -2.0, 3.0
    [whole] = portions(tensors, 1)
    buffer = whole.allocate()
    counts, packed = pack(tensors) or ([], torch.empty(0))
    assert (counts, len(packed)) == ([3, 1, 1], 4 * (4 + dtype.itemsize) + 12)
    buffer[: len(packed)] = packed
    unpack(counts, buffer[: len(packed)], whole.views(buffer))
    for view, tensor in zip(whole.views(buffer), tensors, strict=True):
        torch.testing.assert_close(view, tensor.view(view.shape))
    assert pack([torch.ones(5)]) is None


def test_stale_gang_with_a_filter_ends_alike_with_fewer_bytes(four):
    case = replace(PLAIN, epochs=8)
    dense, filtered = (fit(four, case, ParameterServer(2, filter=one)) for one in (None, Significance(2.0)))
    for worker in filtered:
        assert_equal(worker["parameters"], filtered[0]["parameters"])
    assert filtered[0]["history"][-1]["loss"] < filtered[0]["history"][0]["loss"]
    sent = [sum(worker["report"]["bytes_per_step"] for worker in workers) for workers in (filtered, dense)]
    assert sent[0] < 0.9 * sent[1]


def test_resumed_run_with_a_filter_is_bit_identical(pair, tmp_path):
    """Residuals are pushed before each checkpoint."""
    objective = replace(CASES["Adam"]()[0].objective, optimizer=PLAIN.optimizer)
    settings = {"strategy": ParameterServer(filter=FILTER), "objective": objective, "patience": None, "epochs": 2}
    expected = run(pair, "Adam", whole := Folder(str(tmp_path)), **settings)
    assert_alike(run(pair, "Adam", replace(whole, start=7), **settings), expected)


@pytest.mark.parametrize("optimizer", [ADAM, partial(torch.optim.SGD, lr=0.1, momentum=0.9)])
def test_optimizer_with_momentum_raises(optimizer):
    training = replace(PLAIN, optimizer=optimizer).training(strategy := ParameterServer(filter=FILTER))
    with pytest.raises(InvalidInput, match=r"filter=Significance.*, and the optimizer has momentum"):
        strategy.check(training.objective, work.new_model(training), training.layout, 2)


def test_momentum_of_a_schedule_raises(pair):
    cycle = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=20)
    training = replace(PLAIN, scheduler=cycle).training(ParameterServer(filter=FILTER))
    with pytest.raises(InvalidInput, match=r"a schedule sets a momentum.*OneCycleLR\(cycle_momentum=False\)"):
        pair.gang(training, numbers(), PLAIN.columns())


def weights_alone(named_parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([pair for pair in named_parameters if not pair[0].endswith("bias")], lr=0.05)


@pytest.mark.parametrize("one", [None, FILTER])
def test_parameters_that_the_optimizer_leaves_out_keep_their_values(pair, one):
    for worker in fit(pair, replace(PLAIN, optimizer=weights_alone), ParameterServer(filter=one)):
        for name, value in worker["parameters"].items():
            assert (value == worker["start"][name]).all() == name.endswith("bias")


def test_bad_settings_raise():
    with pytest.raises(InvalidInput, match="threshold is 0; expected"):
        Significance(0)
    with pytest.raises(InvalidInput, match="backup is 1 and filter is Significance"):
        ParameterServer(backup=1, filter=FILTER)
    with pytest.raises(InvalidInput, match=r"ParameterServer\.filter is 0.01; expected"):
        ParameterServer(filter=0.01)
