"""Samplers: the values that a trial gets, by the table of the trials before it and by its number alone.

``"grid"`` takes the combinations in order. All others are samplers of Optuna: a study in memory gets the table's
trials, is asked once, and is dropped. So there is no storage and no lock, and a restarted search needs nothing else:

    finished    COMPLETE, with its value
    paused      PRUNED, with its values at the rungs
    failed      PRUNED without a value, which TPE ranks last
    running     RUNNING, so that trials at the same time differ

The seed of attempt ``a`` at trial ``n`` depends on (seed, n, a). A suggestion that repeats an earlier trial would train
the same weights, so the sampler is asked again; after ten attempts the values are drawn evenly.

J. Bergstra et al., Algorithms for hyper-parameter optimization, NeurIPS 2011 (TPE).
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from sparkdl.data.sampler import generator
from sparkdl.errors import InvalidInput
from sparkdl.ml.tuning.number_range import Range
from sparkdl.ml.tuning.search_space import SearchSpace
from sparkdl.ml.tuning.trial import SAMPLERS, Table, Trial
from sparkdl.training.objective.monitored_value import Mode

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

_ATTEMPTS = 10

Sampler = str | Callable[[int], Any]
"""One of ``SAMPLERS``, or a function of a seed that returns a sampler of Optuna."""


@dataclass(frozen=True)
class SuggestionRule:
    """What decides a suggestion, beside the table and the number.

    Attributes:
        space: the search space.
        sampler: draws the values.
        seed: seed of the search.
        mode: whether a lower or a higher value is better.
    """

    space: SearchSpace
    sampler: Sampler
    seed: int
    mode: Mode

    @property
    def learns(self) -> bool:
        """Whether a suggestion depends on the values of earlier trials."""
        return self.sampler not in ("grid", "random")

    def check(self) -> None:
        """Raise InvalidInput if a package is missing, or the factory returns no sampler of Optuna."""
        if self.sampler == "grid":
            self.space.combinations()
            return
        for package in ("optuna", *(["scipy"] if self.sampler == "gp" else [])):
            if find_spec(package) is None:
                raise InvalidInput(
                    f"sampler is {self.sampler!r}, and {package} is not installed: pip install 'sparkdl-torch[tune]'. "
                    "sampler='grid' needs no package."
                )
        from optuna.samplers import BaseSampler

        with _quiet():
            returned = _make(self.sampler, 0)
        if not isinstance(returned, BaseSampler):
            raise InvalidInput(
                f"sampler returns {returned!r}; expected one of {', '.join(SAMPLERS)}, or a function of a seed that "
                "returns a sampler of Optuna, as in lambda seed: optuna.samplers.CmaEsSampler(seed=seed)."
            )

    def suggest(self, table: Table, number: int) -> Trial | None:
        """The trial of this number, with its values, before it runs; None if a finite space has no other values."""
        if self.sampler == "grid":
            return Trial(number, self.space.combination(number)) if number < self.space.combinations() else None
        earlier = [dict(trial.params) for trial in table]
        if self.space.is_finite and len({*map(str, earlier)}) >= self.space.combinations():
            return None
        states = [trial.sampler_state["study"] for trial in table if "study" in trial.sampler_state]
        state = states[-1] if states else {}  # the newest one
        for attempt in itertools.count():
            seed = generator(self.seed, number, attempt).initial_seed() % (1 << 32)
            sampler, rows = (self.sampler, table) if attempt < _ATTEMPTS else ("random", ())
            trial = self._asked(sampler, rows, seed, state)
            state = trial.sampler_state.get("study", {})
            if trial.params not in earlier:
                return replace(trial, number=number)
        raise AssertionError

    def _asked(self, sampler: Sampler, table: Table, seed: int, state: Mapping[str, Any]) -> Trial:
        import optuna
        from optuna.study import StudyDirection

        with _quiet():
            direction = StudyDirection.MINIMIZE if self.mode == "min" else StudyDirection.MAXIMIZE
            study = optuna.create_study(sampler=_make(sampler, seed), direction=direction)
            domains = {key: _distribution(domain) for key, domain in self.space.domains.items()}
            # Samplers keep a study's state by these methods of the storage; the study itself has none.
            for name, value in state.items():
                study._storage.set_study_system_attr(study._study_id, name, value)
            study.add_trials([_frozen(trial, domains) for trial in table])
            asked = study.ask(domains)
            after = study._storage.get_study_system_attrs(study._study_id)
            kept_states = {"trial": study.trials[-1].system_attrs, "study": after}
        return Trial(0, asked.params, sampler_state={name: value for name, value in kept_states.items() if value})


def _make(sampler: Sampler, seed: int) -> BaseSampler:
    import optuna.samplers as known

    if not isinstance(sampler, str):
        return cast("BaseSampler", sampler(seed))
    if sampler == "gp":
        return known.GPSampler(seed=seed)
    return known.RandomSampler(seed) if sampler == "random" else known.TPESampler(seed=seed, constant_liar=True)


def _distribution(domain: Range | tuple[Any, ...]) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(domain, Range):
        return CategoricalDistribution(range(len(domain)))
    if domain.whole:
        return IntDistribution(int(domain.low), math.floor(domain.high), log=domain.log, step=int(domain.step or 1))
    return FloatDistribution(domain.low, domain.high, log=domain.log, step=domain.step)


def _frozen(trial: Trial, domains: Mapping[str, BaseDistribution]) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    value = trial.value if trial.state == "finished" else None
    states = {"running": TrialState.RUNNING, "finished": TrialState.PRUNED if value is None else TrialState.COMPLETE}
    return create_trial(
        state=states.get(trial.state, TrialState.PRUNED),
        value=value,
        params=dict(trial.params),
        distributions=dict(domains),
        intermediate_values={} if trial.state == "failed" else dict(trial.values),
        system_attrs=dict(trial.sampler_state.get("trial", {})),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Optuna's line for each new study, and without its warnings of experimental samplers."""
    import optuna

    # Not a block of warnings.catch_warnings, which would change the filters of other threads.
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(level, optuna.logging.WARNING))
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)
