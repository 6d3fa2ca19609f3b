"""Suggestions: pure in the table and the number, different from each other, and better than random ones."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import optuna
import pytest

from sparkdl.errors import InvalidInput
from sparkdl.ml.tuning import samplers
from sparkdl.ml.tuning.number_range import Range
from sparkdl.ml.tuning.samplers import Sampler, SuggestionRule
from sparkdl.ml.tuning.search_space import SearchSpace
from sparkdl.ml.tuning.trial import Trial

SPACE = SearchSpace(
    {
        "rate": Range(1e-4, 1.0, log=True),
        "width": Range(4, 256, step=1, log=True),
        "kind": ("slow", "fast"),
        "decay": Range(1e-6, 1e-1, log=True),
    }
)
FACTORIES: dict[str, Sampler] = {
    "random": "random",
    "tpe": "tpe",
    "gp": "gp",
    "qmc": lambda seed: optuna.samplers.QMCSampler(seed=seed),
    "cma": lambda seed: optuna.samplers.CmaEsSampler(seed=seed, n_startup_trials=2, warn_independent_sampling=False),
}


def rule(sampler: Sampler, space: SearchSpace = SPACE, seed: int = 0) -> SuggestionRule:
    return SuggestionRule(space, sampler, seed, "min")


def value(params: dict[str, Any]) -> float:
    width = (math.log2(params["width"]) - 6) ** 2 / 4
    kind = 0.3 * (params["kind"] == "slow")
    return (math.log10(params["rate"]) + 2) ** 2 + width + kind + 0.1 * (math.log10(params["decay"]) + 3) ** 2


def search(suggestions: SuggestionRule, trials: int) -> list[Trial]:
    """A search whose every third trial pauses; each row goes through JSON, as a restart reads it."""
    table: list[Trial] = []
    for number in range(trials):
        trial = suggestions.suggest(table, number)
        assert trial is not None
        found = value(suggestions.space.values(trial.params))
        state = "paused" if number % 3 == 2 else "finished"
        ended = replace(trial, state=state, values={9: found}, rung=9, history=[found])
        restored = json.loads(json.dumps(vars(ended)))
        table.append(Trial(**{**restored, "values": {int(rung): one for rung, one in restored["values"].items()}}))
        assert table[-1] == ended
    return table


@pytest.mark.parametrize("name", FACTORIES)
def test_suggestions_depend_on_the_table_and_the_number_alone(name):
    suggestions = rule(FACTORIES[name])
    suggestions.check()
    table = search(suggestions, 14)
    assert [suggestions.suggest(table[:number], number) for number in (3, 13)] == [
        replace(table[number], state="running", values={}, rung=0, history=()) for number in (3, 13)
    ]
    assert len({str(trial.params) for trial in table}) == 14
    other = rule(FACTORIES[name], seed=1).suggest(table, 14)
    assert (other == suggestions.suggest(table, 14)) == (name == "qmc")  # whose sequence has no seed


def test_a_sampler_keeps_its_state_in_the_rows():
    qmc, cma = search(rule(FACTORIES["qmc"]), 3), search(rule(FACTORIES["cma"]), 12)
    assert [[*trial.sampler_state["study"].values()] for trial in qmc[1:]] == [[0], [1]]
    assert any("cma:" in key for trial in cma for key in trial.sampler_state.get("trial", {}))


def test_running_paused_and_failed_trials_count():
    suggestions = rule("tpe")
    table = search(suggestions, 12)
    first = suggestions.suggest(table, 12)
    assert first is not None
    for state, values in (("running", {}), ("paused", {1: 9.0}), ("failed", {})):
        near = [{**first.params, "rate": first.params["rate"] * (1 + 0.01 * index)} for index in range(10)]
        more = [*table, *(Trial(12 + index, params, state, values) for index, params in enumerate(near))]
        assert suggestions.suggest(more, 12) != first
    nan = [replace(trial, values={9: math.nan}) for trial in table]
    assert suggestions.suggest(nan, 12) is not None


@pytest.mark.parametrize("sampler", ["grid", "random", "tpe"])
def test_a_finite_space_is_exhausted(sampler):
    space = SearchSpace({"batchSize": (8, 16), "patience": Range(1, 3, step=1)})
    suggestions, table = rule(sampler, space), list[Trial]()
    while (trial := suggestions.suggest(table, len(table))) is not None:
        table.append(replace(trial, state="finished", values={9: 1.0}))
    assert sorted(str(space.values(trial.params)) for trial in table) == sorted(
        str({"batchSize": size, "patience": patience}) for size in (8, 16) for patience in (1, 2, 3)
    )


def test_choices_of_any_kind():
    space = SearchSpace({"model": (search, None, [1, 2])})
    trial = rule("tpe", space).suggest([], 0)
    assert trial is not None
    assert trial.params["model"] in (0, 1, 2)
    assert space.values({"model": 0}) == {"model": search}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_samplers_that_learn_find_better_values_than_random_ones():
    mean = {}
    for name in ("random", "tpe", "gp"):
        best = [min(trial.values[9] for trial in search(rule(name, seed=seed), 30)) for seed in range(5)]
        mean[name] = sum(best) / 5
    assert mean["tpe"] < mean["random"] > 10 * mean["gp"]


def test_bad_samplers(monkeypatch):
    with pytest.raises(InvalidInput, match=r"sampler returns 3; expected one of grid, random, tpe, gp, or a function"):
        rule(lambda seed: 3).check()
    with pytest.raises(InvalidInput, match=r"Range\(.*\) has no step, and a grid has all its combinations"):
        rule("grid").check()
    monkeypatch.setattr(samplers, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"sampler is 'gp', and optuna is not installed: pip install .*\[tune\]"):
        rule("gp").check()
    rule("grid", SearchSpace({"batchSize": (8, 16)})).check()
