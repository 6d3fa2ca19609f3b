"""Ensembles on disk: plain values in ``metadata/``, and every model or estimator by its own writer.

    <path>/metadata/               Params, and of a model its rule, weights, history and report
    <path>/members/00000/ ...      the members of a model
    <path>/bases/00000/ ...        the base estimators of an ensemble that is to be trained
    <path>/params/<name>/          other Params' values that have writers, such as an evaluator

All of it is written beside the path and moved into place as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.ml import Estimator
from pyspark.ml.evaluation import Evaluator
from pyspark.ml.param import Params

from sparkdl.ml.persistence.reader_writer import Reader, Writer

if TYPE_CHECKING:
    from sparkdl.ensembles.model import EnsembleModel
    from sparkdl.ensembles.params import EnsembleParams


class EnsembleModelWriter(Writer):
    """Writes the model of an ensemble.

    Args:
        model: what is written.
    """

    _instance: EnsembleModel

    def contents(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        """Nothing beside the members but plain values."""
        model = self._instance
        return {}, {
            "members": len(model.models),
            "rule": model.rule,
            "weights": model.weights,
            "intercept": model.intercept,
            "numClasses": model.numClasses,
            "history": model.history,
            "report": model.report,
        }

    def parts(self) -> dict[str, Params]:
        """The members."""
        return {_numbered("members", index): model for index, model in enumerate(self._instance.models)}


class EnsembleModelReader(Reader["EnsembleModel"]):
    """Reads the model of an ensemble.

    Args:
        kind: EnsembleModel.
    """

    def made(self, path: str, found: dict[str, Any]) -> EnsembleModel:
        """The model, without its Params."""
        made: EnsembleModel = self._kind(
            [self.part(path, _numbered("members", index)) for index in range(found["members"])],
            rule=found["rule"],
            weights=found["weights"],
            intercept=found["intercept"],
            numClasses=found["numClasses"],
            history=found["history"],
            report=found["report"],
        )
        return made


class EnsembleWriter(Writer):
    """Writes an ensemble that is to be trained: its Params, and its bases.

    Args:
        estimator: what is written.
    """

    _instance: EnsembleParams

    def contents(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        """No files."""
        return {}, {"bases": len(self._instance.bases()), "params": sorted(self._evaluators())}

    def parts(self) -> dict[str, Params]:
        """The bases, and evaluators."""
        bases = {_numbered("bases", index): base for index, base in enumerate(self._instance.bases())}
        return bases | {f"params/{name}": value for name, value in self._evaluators().items()}

    def apart(self) -> set[str]:
        """Params that hold estimators or evaluators."""
        return {param.name for param, value in self._instance._paramMap.items() if _written_apart(value)}

    def _evaluators(self) -> dict[str, Any]:
        return {param.name: value for param, value in self._instance._paramMap.items() if isinstance(value, Evaluator)}


class EnsembleReader(Reader[Any]):
    """Reads an ensemble that is to be trained.

    Args:
        kind: its class.
    """

    def made(self, path: str, found: dict[str, Any]) -> Any:
        """An ensemble whose Params are all at their defaults."""
        return self._kind()

    def completed(self, path: str, found: dict[str, Any], instance: Any) -> Any:
        """The ensemble with its bases."""
        instance._set(**{name: self.part(path, f"params/{name}") for name in found["params"]})
        return instance.with_bases([self.part(path, _numbered("bases", index)) for index in range(found["bases"])])


def _numbered(folder: str, index: int) -> str:
    return f"{folder}/{index:05d}"


def _written_apart(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(isinstance(each, Estimator) for each in value)
    return isinstance(value, (Estimator, Evaluator))
