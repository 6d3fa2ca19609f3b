"""Estimators whose Params hold other estimators, and models that hold other models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from pyspark.ml import Model
from pyspark.ml.param import Param, Params
from pyspark.sql import DataFrame

from sparkdl.io import files
from sparkdl.io.weights_file import Weights
from sparkdl.ml.param_declaration import ConstructedParams
from sparkdl.ml.param_maps import map_hash
from sparkdl.ml.persistence.nested_params import aliases, params_in
from sparkdl.ml.persistence.reader_writer import Saveable, SavedInstance, numbered
from sparkdl.ml.report import Report, TrainingSummary
from sparkdl.spark.columns import check_frame

Estimating = TypeVar("Estimating", bound="CompositeEstimator")
Fitting = TypeVar("Fitting", bound="CompositeModel")


class CompositeEstimator(ConstructedParams, Saveable):
    """Base class of estimators that train other estimators, by the Params that hold them."""

    _map: Mapping[str, Any] | None = None  # values of a param map, as in ParamMapEstimator; None without a map
    runDir: Param[str | None]

    def _held(self) -> dict[str, Any]:
        values = {name: self.getOrDefault(name) for name in self.declared() if self.isDefined(name)}
        return {name: value for name, value in values.items() if params_in(value)}

    def saved(self) -> tuple[dict[str, Weights], dict[str, Any]]:
        """The names of the Params that hold estimators or evaluators, and the number in each list."""
        return {}, {"params": {name: len(held) if isinstance(held, list) else 0 for name, held in self._held().items()}}

    def parts(self) -> dict[str, Params]:
        """The estimators and evaluators."""
        return by_folder({f"params/{name}": held for name, held in self._held().items()})

    def params_in_parts(self) -> set[str]:
        """Params that hold estimators or evaluators."""
        return set(self._held())

    def with_parts(self, saved: SavedInstance) -> Any:
        """This estimator with its estimators and evaluators."""
        held = saved.fields["params"]
        for name in held:
            count = held[name] if isinstance(held, dict) else 0  # an earlier version counted none
            path = f"params/{name}"
            self._set(**{name: saved.numbered(path, count) if count else saved.part(path)})
        return self

    def copy(self: Estimating, extra: dict[Param[Any], Any] | None = None) -> Estimating:
        """A copy with the same uid, and copies of its estimators and evaluators.

        With ``extra``, its fits use ``runDir/<hash>``; if ``extra`` sets ``runDir``, that directory.
        """
        copied = super().copy(extra)
        for name, held in copied._held().items():
            copied._set(**{name: [one.copy(extra) for one in held] if isinstance(held, list) else held.copy(extra)})
        if extra is not None:
            # Aliases name the Params' owners across processes: a uid ends in random digits.
            items = sorted(extra.items(), key=lambda item: item[0].name)
            owners = aliases(self, *(params for _, value in items for params in params_in(value)))
            values = {f"{owners.get(param.parent, '')} {param.name}": value for param, value in items}
            copied._map = None if self.runDir in extra else {**(self._map or {}), **values}
        return copied

    def fit(self, dataset: DataFrame, params: Any = None) -> Any:
        """Fit a model, or one for each param map; raises InvalidInput unless the data is a bounded Spark DataFrame."""
        check_frame(dataset, bounded=True)
        return super().fit(dataset, params)  # type: ignore[misc]

    def fitMultiple(self, dataset: DataFrame, paramMaps: Sequence[dict[Param[Any], Any]]) -> Iterator[tuple[int, Any]]:
        """Fit a model for each param map; an empty map counts as a map."""
        return super(CompositeEstimator, self.copy({})).fitMultiple(dataset, paramMaps)  # type: ignore[misc,no-any-return]

    def run_directory(self, mark: str) -> str | None:
        """The directory of a fit on the rows with the fingerprint ``mark``; None without ``runDir``."""
        directory: str | None = self.getOrDefault(self.runDir)
        if directory is None or self._map is None:
            return directory
        return files.join(directory, map_hash(self._map, mark))


class CompositeModel(Saveable, Model):
    """Base class of models with the models that a fit trained.

    Attributes:
        history: a row for each of them.
        report: the report of the fit.
        predictor: the attribute with the model whose columns this one writes; default: it writes its own.
    """

    predictor: ClassVar[str | None] = None

    # Folders of the attributes with models or lists of models, which are the first arguments of the constructor.
    _folders: ClassVar[Mapping[str, str]]

    history: list[dict[str, Any]]
    report: Report

    @property
    def summary(self) -> TrainingSummary:
        """Members, candidates or trials, seconds, rows if they are known, and the metrics of the fit.

        Raises:
            InvalidInput: no estimator trained the model.
        """
        return TrainingSummary.of(self.history, self.report)

    def copy(self: Fitting, extra: dict[Param[Any], Any] | None = None) -> Fitting:
        """A copy with the same uid, and copies of its models."""
        copied = super().copy(extra)
        for name in self._folders:
            held = getattr(self, name)
            setattr(copied, name, [one.copy(extra) for one in held] if isinstance(held, list) else held.copy(extra))
        return copied

    def saved(self) -> tuple[dict[str, Weights], dict[str, Any]]:
        """The fields, and the number of models in each list."""
        written, fields = super().saved()
        return written, fields | {name: len(held) for name, held in self._held().items() if isinstance(held, list)}

    def parts(self) -> dict[str, Params]:
        """The models."""
        return by_folder(self._held())

    @classmethod
    def restored(cls, saved: SavedInstance) -> Any:
        """The model without its Params."""
        fields = saved.fields
        values = {name: fields[name] for name in cls.saved_fields}
        names = cls._folders.values()
        held = [saved.numbered(name, fields[name]) if name in fields else saved.part(name) for name in names]
        return cls(*held, **values)

    def _held(self) -> dict[str, Any]:
        return {folder: getattr(self, name) for name, folder in self._folders.items()}


def by_folder(held: Mapping[str, Any]) -> dict[str, Params]:
    """The models by their path: a single model has the folder's name, and a list of models is numbered inside it."""
    parts = [numbered(name, value) if isinstance(value, list) else {name: value} for name, value in held.items()]
    return {path: part for by_path in parts for path, part in by_path.items()}
