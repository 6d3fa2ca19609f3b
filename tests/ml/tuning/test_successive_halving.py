"""The rule by which trials start, pause and continue: cases of tables, and simulated searches."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from sparkdl.errors import InvalidInput
from sparkdl.ml.tuning.successive_halving import (
    Finish,
    PromoteTrial,
    Schedule,
    StartTrial,
    SuccessiveHalving,
    Wait,
    next_step,
)
from sparkdl.ml.tuning.trial import Trial

NAN = float("nan")
SCHEDULE = Schedule(9, 9, "min", SuccessiveHalving())  # rungs 1, 3, 9


def paused(number: int, *values: float, rungs: tuple[int, ...] = (1, 3, 9)) -> Trial:
    """A trial that has these values at its first rungs."""
    reached = rungs[: len(values)]
    state = "finished" if reached[-1] == rungs[-1] else "paused"
    return Trial(number, {}, state, dict(zip(reached, values, strict=True)), reached[-1])


def running(number: int, rung: int, *values: float) -> Trial:
    return Trial(number, {}, "running", dict(zip((1, 3, 9), values, strict=False)), rung)


def failed(number: int, rung: int) -> Trial:
    return Trial(number, {}, "failed", {}, rung)


def test_rungs():
    assert SuccessiveHalving().rungs(27) == (3, 9, 27)
    assert SuccessiveHalving().rungs(20) == (3, 9, 20)
    assert SuccessiveHalving().rungs(1) == (1,)
    assert SuccessiveHalving(2, 1).rungs(6) == (1, 2, 4, 6)
    assert [SuccessiveHalving(3, 1, 3).rungs(9, bracket) for bracket in range(3)] == [(1, 3, 9), (3, 9), (9,)]
    with pytest.raises(InvalidInput, match="min_epochs is 8, and epochs is 4; expected at most as many"):
        SuccessiveHalving(min_epochs=8).rungs(4)


CASES: dict[str, tuple[list[Trial], Any]] = {
    "the first one starts": ([], StartTrial(0, 1)),
    "too few for a promotion": ([paused(0, 1.0), paused(1, 2.0)], StartTrial(2, 1)),
    "the best of three": ([paused(0, 3.0), paused(1, 1.0), paused(2, 2.0)], PromoteTrial(paused(1, 1.0), 3)),
    "of equal values the first": ([paused(0, 1.0), paused(1, 1.0), paused(2, 2.0)], PromoteTrial(paused(0, 1.0), 3)),
    "promoted already": ([paused(0, 3.0), running(1, 3, 1.0), paused(2, 2.0)], StartTrial(3, 1)),
    "those that are above count": (
        [paused(0, 3.0), paused(1, 1.0, 9.0), *(paused(number, 2.0 + number) for number in range(2, 6))],
        PromoteTrial(paused(0, 3.0), 3),
    ),
    "NaN loses": ([paused(0, NAN), paused(1, 2.0), paused(2, NAN)], PromoteTrial(paused(1, 2.0), 3)),
    "NaN alone": ([paused(0, NAN), paused(1, NAN), paused(2, NAN)], StartTrial(3, 1)),
    "a failed trial counts as the last of its rung": (
        [failed(0, 1), paused(1, 2.0), paused(2, 3.0)],
        PromoteTrial(paused(1, 2.0), 3),
    ),
    "the top rung first": (
        [
            *(paused(number, number, float(number)) for number in range(3)),
            *(paused(number, 0.5) for number in (3, 4, 5)),
        ],
        PromoteTrial(paused(0, 0, 0.0), 9),
    ),
    "all have started": ([running(number, 1) for number in range(9)], Wait()),
    "one has reached the last rung": (
        [
            paused(0, 1.0, 1.0, 1.0),
            *(paused(number, 2.0, 2.0) for number in (1, 2)),
            *map(paused, range(3, 9), [3.0] * 6),
        ],
        Finish(),
    ),
    "all failed": ([failed(number, 1) for number in range(9)], Finish()),
}


@pytest.mark.parametrize(("table", "step"), CASES.values(), ids=CASES)
def test_steps(table, step):
    assert next_step(table, SCHEDULE) == step


def test_with_few_trials_the_best_of_the_highest_rung_continues():
    few = replace(SCHEDULE, trials=2)
    assert next_step([paused(0, 2.0), paused(1, 1.0)], few) == PromoteTrial(paused(1, 1.0), 3)
    assert next_step([paused(0, 2.0), paused(1, 1.0, 5.0)], few) == PromoteTrial(paused(1, 1.0, 5.0), 9)
    assert next_step([paused(0, 2.0), paused(1, 1.0, 5.0, 6.0)], few) == Finish()
    assert next_step([paused(0, 2.0), failed(1, 3)], few) == PromoteTrial(paused(0, 2.0), 3)


def test_higher_values_may_be_better():
    table = [paused(0, 3.0), paused(1, 1.0), paused(2, 2.0)]
    assert next_step(table, replace(SCHEDULE, mode="max")) == PromoteTrial(table[0], 3)


def test_without_halving_each_trial_runs_to_its_end():
    whole = Schedule(2, 9, "min")
    assert next_step([], whole) == StartTrial(0, 9)
    assert next_step([running(0, 9)], whole) == StartTrial(1, 9)
    assert next_step([running(0, 9), running(1, 9)], whole) == Wait()
    finished = [Trial(number, {}, "finished", {9: 1.0}, 9) for number in range(2)]
    assert next_step(finished, whole) == Finish()


def test_nothing_starts_or_continues_after_the_limit():
    table = [paused(0, 3.0), paused(1, 1.0), paused(2, 2.0)]
    assert next_step(table, SCHEDULE, ends=True) == Finish()
    assert next_step([*table, running(3, 1)], SCHEDULE, ends=True) == Wait()


def test_shares_of_brackets_are_hyperbands():
    halving = SuccessiveHalving(3, 1, 3)
    counts = Counter(halving.bracket(number) for number in range(170))
    assert counts == {0: 90, 1: 50, 2: 30}  # 9, 5 and 3 parts
    first = Counter(halving.bracket(number) for number in range(17))
    assert first == {0: 9, 1: 5, 2: 3}


@pytest.mark.parametrize("seed", range(200))
def test_simulated_searches(seed):
    """Slots take steps as trials end, at random times; some trials fail, and some have no value."""
    draw = random.Random(seed)
    halving = SuccessiveHalving(draw.choice([2, 3, 4]), draw.choice([None, 1, 2]), draw.choice([1, 1, 2, 3]))
    epochs, count, mode = draw.choice([2, 9, 20, 27]), draw.randrange(1, 40), draw.choice(["min", "max"])
    schedule, slots = Schedule(count, epochs, mode, halving), draw.randrange(1, 6)
    table: list[Trial] = []
    busy: list[tuple[float, int]] = []
    runs: Counter[tuple[int, int]] = Counter()
    now = 0.0
    while True:
        step = next_step(table, schedule)
        if isinstance(step, Finish):
            break
        if isinstance(step, Wait) or len(busy) == slots:
            assert busy  # nobody waits for nothing
            now, number = heapq.heappop(busy)
            table[number] = ended(table[number], schedule, draw)
            continue
        if isinstance(step, StartTrial):
            assert step.number == len(table)
            number, epoch = step.number, step.epoch
            table.append(Trial(number, {}, "running", {}, epoch))
        else:
            number, epoch = step.trial.number, step.epoch
            check_promotion(table, schedule, step)
            table[number] = replace(table[number], state="running", rung=epoch)
        runs[number, epoch] += 1
        heapq.heappush(busy, (now + draw.random(), number))
    assert len(table) == count
    assert set(runs.values()) == {1}  # each rung of a trial runs once
    usable = [one for one in table if one.state in ("paused", "finished") and finite(one.values[one.rung])]
    assert not usable or any(epochs in one.values for one in table)


def ended(trial: Trial, schedule: Schedule, draw: random.Random) -> Trial:
    if draw.random() < 0.05:
        return replace(trial, state="failed")
    value = NAN if draw.random() < 0.05 else draw.random()
    state = "finished" if trial.rung == schedule.epochs else "paused"
    return replace(trial, state=state, values={**trial.values, trial.rung: value})


def check_promotion(table: list[Trial], schedule: Schedule, step: PromoteTrial) -> None:
    halving, trial = schedule.halving, step.trial
    assert halving is not None
    assert table[trial.number] == trial
    rungs = schedule.rungs(trial.number)
    assert rungs[rungs.index(trial.rung) + 1] == step.epoch
    assert finite(trial.values[trial.rung])
    alike = [one for one in table if halving.bracket(one.number) == halving.bracket(trial.number)]
    reached = [one for one in alike if trial.rung in one.values]
    lost = sum(one.state == "failed" and one.rung == trial.rung and trial.rung not in one.values for one in alike)
    sign = 1 if schedule.mode == "min" else -1
    value = sign * trial.values[trial.rung]
    better = sum(finite(one.values[trial.rung]) and sign * one.values[trial.rung] < value for one in reached)
    if better >= (len(reached) + lost) // halving.reduction_factor:  # else only at the end
        assert all(one.state != "running" for one in table)
        assert len(table) == schedule.trials


def finite(value: float) -> bool:
    return value - value == 0
