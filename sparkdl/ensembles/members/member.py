"""What a member of an ensemble is before it is trained, and what all of them are after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from pyspark.ml import Estimator, Model
from pyspark.sql import DataFrame

from sparkdl.ensembles.members.store import Kept
from sparkdl.ensembles.resampling.bootstrap import Draw, Everything
from sparkdl.ensembles.resampling.subspace import Subspace
from sparkdl.ml.fit_monitor import Watch


class Told(Protocol):
    """A model that tells of its fit."""

    history: list[dict[str, Any]]
    report: dict[str, Any]


Reporting = TypeVar("Reporting", bound=Told)


@dataclass(frozen=True)
class Member:
    """A member to be trained.

    Attributes:
        index: its number, from 0; what it is known by, and kept under.
        estimator: what trains it, with the member's own seed.
        draw: which rows it is given, and how often.
        features: which of the features it sees; None for all.
    """

    index: int
    estimator: Estimator[Any]
    draw: Draw = Everything()  # noqa: RUF009 - it is frozen
    features: Subspace | None = None


@dataclass(frozen=True)
class Rows:
    """What members are trained on.

    Attributes:
        frame: the rows, with a column of ids beside their own.
        row_id: the name of that column: integers, unique, and the same whenever the rows are computed again.
    """

    frame: DataFrame
    row_id: str


@dataclass(frozen=True)
class Plan:
    """How members are trained.

    Attributes:
        kept: where finished ones are kept; None for nowhere.
        parallelism: how many fits of the driver run at a time.
        watch: what is told of them; None for nothing.
    """

    kept: Kept | None = None
    parallelism: int = 1
    watch: Watch | None = None

    def told(self, model: Reporting) -> Reporting:
        """The model of a fit that is over, with its report; the run's directory has history, report and timeline."""
        if self.watch is not None:
            model.report = self.watch.report(model.history, model.report)
            self.watch.finish(model)
        return model

    def expect(self, count: int, restored: Sequence[int] = ()) -> None:
        """Tell that so many members are there to be trained, or restored."""
        if self.watch is not None:
            self.watch.logbook.note("members", {"count": count})
            for index in restored:
                self.watch.logbook.note("member", {"member": index, "restored": True})

    def tell(self, index: int, seconds: float) -> None:
        """Tell that a member is trained."""
        if self.watch is not None:
            self.watch.logbook.note("member", {"member": index, "seconds": seconds})


@dataclass(frozen=True)
class Models:
    """What came of members, in their order.

    Attributes:
        models: what they have become.
        indices: of the members.
        seconds: of training, of each; of restored ones as it was when they were trained.
        trained: the indices of those that were trained now.
        restored: the indices of those that had been finished before.
    """

    models: list[Model]
    indices: list[int]
    seconds: list[float]
    trained: list[int] = field(default_factory=list)
    restored: list[int] = field(default_factory=list)
