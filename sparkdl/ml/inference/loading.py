"""Loads saved models for predictions without Spark and without pyspark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkdl.errors import InvalidInput
from sparkdl.io.redaction import public
from sparkdl.ml.features.reader import PIPELINES, read_pipeline
from sparkdl.ml.features.saved_stage import SavedStage
from sparkdl.ml.inference.predictor import Predictor
from sparkdl.ml.inference.saved_pipeline import SavedPipeline, TorchStage
from sparkdl.ml.inference.trained_module import TrainedModule
from sparkdl.ml.persistence.saved_folder import SavedFolder, fields_of

_TORCH_MODEL = "sparkdl.ml.model.TorchModel"


def load_predictor(path: str, *, device: str = "cpu", trust: bool = False) -> Predictor | SavedPipeline:
    """Load a saved ``TorchModel`` or ``PipelineModel``, whose ``predict`` needs neither Spark nor Java nor pyspark.

    A named model factory must be importable.

    Args:
        path: the folder that ``model.save`` wrote: a path or URI on any filesystem that pyarrow supports.
        device: where the model computes: ``"cpu"``, ``"cuda"`` or a certain GPU, such as ``"cuda:1"``.
        trust: also load pickled parts, which runs the code inside them.

    Raises:
        InvalidInput: the path holds neither, a stage is not supported, or the model is damaged, has another format,
            names a factory that cannot be imported, or, without ``trust``, has pickled parts; or there is no such GPU.
    """
    stage = SavedStage.open(path)
    if stage.class_name == _TORCH_MODEL:
        return _predictor(stage, device, trust=trust)
    if stage.class_name not in PIPELINES:
        raise InvalidInput(
            f"{public(path)} holds a {stage.class_name}; expected a TorchModel, or a PipelineModel with one. Other "
            "models predict on Spark, by transform."
        )
    torch = {_TORCH_MODEL: lambda saved: TorchStage(_predictor(saved, device, trust=trust))}
    return SavedPipeline(read_pipeline(path, torch))


def _predictor(stage: SavedStage, device: str, *, trust: bool) -> Predictor:
    path = public(stage.uri)
    saved = SavedFolder(path, stage.uri, fields_of(path, stage.metadata, _TORCH_MODEL), trust)
    try:
        return Predictor.of(TrainedModule.load(saved), {**_params(stage, saved), "device": device})
    except (KeyError, TypeError, AttributeError, AssertionError) as error:
        raise InvalidInput(f"{path} is damaged: {type(error).__name__}: {error}.") from error


def _params(stage: SavedStage, saved: SavedFolder) -> Mapping[str, Any]:
    """The values of the model's Params by name; of inputCols and featuresCol, the one that is set."""
    given = stage.metadata["paramMap"]
    only = {"inputCols": [given["featuresCol"]]} if "featuresCol" in given else {}
    return {**stage.params, **saved.objects(), **only}
