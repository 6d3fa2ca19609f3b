"""Stacking and the best of candidates on disk.

<path>/metadata/              Params, history and report; how level-one features are made; metrics
<path>/bases/00000/ ...       of a stacking model the bases' models; of an estimator those that it trains,
                              the meta estimator the last of them
<path>/meta/                  of a stacking model the one that reads what the others predict
<path>/best/                  of the best of candidates its model
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.ml.param import Params

from sparkdl.ensembles.meta_features import LevelOne
from sparkdl.ensembles.persistence import EnsembleReader, EnsembleWriter
from sparkdl.ml.persistence.reader_writer import Reader, Writer

if TYPE_CHECKING:
    from sparkdl.ensembles.best_of import BestOfModel
    from sparkdl.ensembles.stacking import Stacking, StackingModel

_META, _BEST = "meta", "best"


class StackingWriter(EnsembleWriter):
    """Writes a stacking that is to be trained.

    Args:
        estimator: what is written.
    """

    _instance: Stacking

    def contents(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        """No files, and whether the last of the bases is the meta estimator."""
        written, said = super().contents()
        return written, said | {"meta": self._instance.getMeta() is not None}


class StackingReader(EnsembleReader):
    """Reads a stacking that is to be trained.

    Args:
        kind: Stacking.
    """

    def completed(self, path: str, found: dict[str, Any], instance: Any) -> Any:
        """The stacking with its bases and its meta estimator."""
        made = super().completed(path, found, instance)
        if found["meta"]:
            *bases, meta = made.getBases()
            made.setBases(bases).setMeta(meta)
        return made


class StackingModelWriter(Writer):
    """Writes the model of a stacking.

    Args:
        model: what is written.
    """

    _instance: StackingModel

    def contents(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        """Nothing beside the models but plain values."""
        model = self._instance
        return {}, {
            "bases": len(model.models),
            "classes": model.level.classes,
            "passthrough": list(model.level.passthrough),
            "history": model.history,
            "report": model.report,
        }

    def parts(self) -> dict[str, Params]:
        """The models."""
        bases: dict[str, Params] = {_base(index): model for index, model in enumerate(self._instance.models)}
        return bases | {_META: self._instance.meta}


class StackingModelReader(Reader["StackingModel"]):
    """Reads the model of a stacking.

    Args:
        kind: StackingModel.
    """

    def made(self, path: str, found: dict[str, Any]) -> StackingModel:
        """The model, without its Params."""
        made: StackingModel = self._kind(
            [self.part(path, _base(index)) for index in range(found["bases"])],
            self.part(path, _META),
            LevelOne(found["classes"], tuple(found["passthrough"])),
            history=found["history"],
            report=found["report"],
        )
        return made


class BestOfModelWriter(Writer):
    """Writes the model of the best of candidates.

    Args:
        model: what is written.
    """

    _instance: BestOfModel

    def contents(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        """Nothing beside the model but plain values."""
        names = ("bestIndex", "avgMetrics", "foldMetrics", "history", "report")
        return {}, {name: getattr(self._instance, name) for name in names}

    def parts(self) -> dict[str, Params]:
        """The best model."""
        return {_BEST: self._instance.bestModel}


class BestOfModelReader(Reader["BestOfModel"]):
    """Reads the model of the best of candidates.

    Args:
        kind: BestOfModel.
    """

    def made(self, path: str, found: dict[str, Any]) -> BestOfModel:
        """The model, without its Params."""
        names = ("bestIndex", "avgMetrics", "foldMetrics", "history", "report")
        made: BestOfModel = self._kind(self.part(path, _BEST), **{name: found[name] for name in names})
        return made


def _base(index: int) -> str:
    return f"bases/{index:05d}"
