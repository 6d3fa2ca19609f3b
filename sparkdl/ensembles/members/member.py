"""An ensemble's members before training (``Member``) and after it (``FittedMembers``), and errors of failed members."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sparkdl.ensembles.members.store import MemberStore
from sparkdl.ensembles.resampling.bootstrap import AllRows, Draw
from sparkdl.ensembles.resampling.subspace import Subspace
from sparkdl.errors import InvalidInput, SparkdlError, WorkerFailed
from sparkdl.ml.fit_monitor import FitMonitor

Reported = TypeVar("Reported", bound=Any)  # a model with ``history`` and ``report``


@dataclass(frozen=True)
class Member:
    """A member before training.

    Attributes:
        index: number of the member, from 0; it identifies the member in messages and in the store.
        estimator: pyspark.ml estimator with the member's seed.
        draw: how often the member gets each row, by the ids in the column ``ROW_ID``; default: each row once.
        features: the features that the member sees; default: all.
    """

    index: int
    estimator: Any
    draw: Draw = AllRows()  # noqa: RUF009 - frozen
    features: Subspace | None = None


@dataclass(frozen=True)
class Plan:
    """Settings of a fit of members.

    Attributes:
        store: store of finished members; default: none.
        parallelism: number of driver fits that run at a time; default: 1.
        watch: monitor of the fit; default: none.
    """

    store: MemberStore | None = None
    parallelism: int = 1
    watch: FitMonitor | None = None

    def reported(self, model: Reported) -> Reported:
        """Finish the monitor; return the model with its report. The run's directory gets history and timeline too."""
        if self.watch is not None:
            model.report = self.watch.report(model.history, model.report)
            self.watch.finish(model)
        return model

    def expect(self, count: int, restored: Sequence[int]) -> None:
        """Emit the number of members, and an event for each restored one."""
        if self.watch is not None:
            self.watch.event_log.note("members", {"count": count})
            for index in restored:
                self.watch.event_log.note("member", {"member": index, "restored": True})

    def emit(self, index: int, seconds: float) -> None:
        """Emit the event of a trained member."""
        if self.watch is not None:
            self.watch.event_log.note("member", {"member": index, "seconds": seconds})


@dataclass(frozen=True)
class FittedMembers:
    """Fitted members, in their order.

    Attributes:
        models: fitted models.
        indices: index of each member.
        seconds: training time of each member; of a restored member, its original training time.
        trained: indices of the members that this fit trained.
        restored: indices of the members from the store.
    """

    models: list[Any]
    indices: list[int]
    seconds: list[float]
    trained: list[int] = field(default_factory=list)
    restored: list[int] = field(default_factory=list)

    @classmethod
    def of(
        cls, fitted: Mapping[int, tuple[Any, float]], indices: Sequence[int], restored: Collection[int]
    ) -> FittedMembers:
        """The members with these indices; ``fitted`` has the model and the seconds of each."""
        models, seconds = [fitted[index][0] for index in indices], [fitted[index][1] for index in indices]
        return cls(models, [*indices], seconds, sorted({*indices} - {*restored}), sorted(restored))


def summary(*fits: FittedMembers) -> dict[str, Any]:
    """Report entries of fits: the indices of the members ``trained`` and ``restored``."""
    return {name: sorted(index for fit in fits for index in getattr(fit, name)) for name in ("trained", "restored")}


def member_error(index: int, error: Exception) -> SparkdlError:
    """An error that names the member; it keeps its class if ``sparkdl.errors`` has it, else it is ``WorkerFailed``."""
    if not isinstance(error, SparkdlError):
        return WorkerFailed(f"member {index}: {type(error).__name__}: {str(error).rstrip()}")
    return _with_message(error, f"member {index}: {error.message}")


def with_others(
    error: SparkdlError, others: Sequence[int], *, finished: int, count: int, stored: int | None
) -> SparkdlError:
    """Add the other failed members to the first one's error, and the numbers of finished and stored members."""
    advice = f"{finished} of {count} members are trained"
    if stored is None:
        advice += "; without runDir, fit stores none."
    else:
        advice += f" and {stored} are stored; call fit again to train only the missing ones."
    more = f" Members {[*others]} also failed." if others else ""
    stop = "" if error.message.endswith((".", "!", "?")) else "."
    return _with_message(error, f"{error.message}{stop}{more} {advice}")


def _with_message(error: SparkdlError, message: str) -> SparkdlError:
    simple = type(error).__init__ is SparkdlError.__init__
    kind = type(error) if simple else InvalidInput if isinstance(error, InvalidInput) else WorkerFailed
    return kind(message, context=error.context, trace=error.trace)
