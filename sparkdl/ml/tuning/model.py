"""The result of a search: the best trial's model, and the table of trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pyspark.sql import DataFrame

from sparkdl.ml.evaluation import Metrics
from sparkdl.ml.model import TorchModel
from sparkdl.ml.persistence.formatting import to_json_value
from sparkdl.ml.report import Report
from sparkdl.ml.trials.composite import CompositeModel
from sparkdl.ml.tuning.trial import Trial


class TorchTunerModel(CompositeModel):
    """The model of the best trial.

    ``TorchTuner.fit`` returns it. ``transform``, ``evaluate`` and ``predict`` run ``bestModel``.

    Args:
        bestModel: the best trial's model.
        bestParams: the best trial's values by key of ``paramSpace``; values without a JSON form as text.
        bestValue: the best trial's value of the estimator's ``monitor``. It is the best of many, so it is too
            optimistic: evaluate the model on other rows.
        history: a row for each trial.
        report: ``seconds``, ``best_trial``, and the ``trials``.
    """

    def __init__(
        self,
        bestModel: TorchModel,
        *,
        bestParams: dict[str, Any] | None = None,
        bestValue: float | None = None,
        history: list[dict[str, Any]] | None = None,
        report: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.bestModel, self.bestParams, self.bestValue = bestModel, bestParams or {}, bestValue
        self.history, self.report = history or [], Report.of(report, history)

    @classmethod
    def of(cls, trained: TorchModel, best: Trial, trials: list[dict[str, Any]]) -> TorchTunerModel:
        """The model of a finished search with ``described`` trials; ``trained`` is the model of the ``best`` one."""
        params = next(one["params"] for one in trials if one["number"] == best.number)
        report = {"best_trial": best.number, "trials": trials}
        return cls(trained, bestParams=params, bestValue=best.value, history=history_of(trials), report=report)

    predictor: ClassVar[str | None] = "bestModel"
    _folders: ClassVar[Mapping[str, str]] = {"bestModel": "best"}
    saved_fields: ClassVar[tuple[str, ...]] = ("bestParams", "bestValue", "history", "report")

    @property
    def trials(self) -> list[dict[str, Any]]:
        """A dict for each trial.

        It has ``number``, ``params``, ``state``, ``value``, ``epochs``, ``seconds``, ``values`` by rung, ``history``,
        which has the value of each epoch, and ``error``.
        """
        trials: list[dict[str, Any]] = self.report.get("trials", [])
        return trials

    def evaluate(self, dataset: DataFrame) -> Metrics:
        """Compute the metrics of the best model, as ``TorchModel.evaluate``."""
        return self.bestModel.evaluate(dataset)

    def predict(self, data: Any) -> Any:
        """Predict by the best model, as ``TorchModel.predict``."""
        return self.bestModel.predict(data)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        return self.bestModel.transform(dataset)


def described(trial: Trial, params: Mapping[str, Any]) -> dict[str, Any]:
    """A trial with its values by key of the space, for ``TorchTunerModel.trials``, as JSON."""
    values = {str(rung): value for rung, value in trial.values.items()}
    return {
        "number": trial.number,
        "params": {key: to_json_value(value) for key, value in params.items()},
        "state": trial.state,
        "value": trial.value,
        "epochs": len(trial.history),
        "seconds": trial.seconds,
        "values": values,
        "history": [*trial.history],
        "error": trial.error,
    }


def history_of(trials: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each described trial, with its params as columns."""
    names = ("state", "value", "epochs", "seconds")
    return [{"trial": one["number"], **{name: one[name] for name in names}, **one["params"]} for one in trials]
