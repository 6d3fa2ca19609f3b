"""Loads saved models for predictions without Spark and without pyspark."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.redaction import public
from sparkdl.serving.features.reader import PIPELINES, read_pipeline
from sparkdl.serving.features.saved_stage import SavedStage
from sparkdl.serving.format.factory import Trust
from sparkdl.serving.format.saved_folder import SavedFolder, fields_of
from sparkdl.serving.predictor import Predictor
from sparkdl.serving.saved_pipeline import SavedPipeline, TorchStage
from sparkdl.serving.trained_module import TrainedModule

_TORCH_MODEL = "sparkdl.ml.model.TorchModel"
_SEARCHED_MODEL = "sparkdl.ml.tuning.model.TorchTunerModel"


def load_predictor(
    path: files.StrPath, *, device: str = "cpu", trust: bool = False, modules: Sequence[str] = ()
) -> Predictor | SavedPipeline:
    """Load a saved ``TorchModel`` or ``PipelineModel``, whose ``predict`` needs neither Spark nor Java nor pyspark.

    Of a saved ``TorchTunerModel``, it loads the best model.

    Args:
        path: the folder that ``model.save`` wrote: a path or URI on any filesystem that pyarrow supports.
        device: where the model computes: ``"cpu"``, ``"cuda"`` or a certain GPU, such as ``"cuda:1"``.
        trust: also load pickled parts, which runs the code inside them, and import any name.
        modules: names of your modules, such as ``["my_nets"]``, whose functions and classes are called with the saved
            arguments. A factory that is a class needs no name if your program has imported its module.

    Raises:
        InvalidInput: the path holds neither, a stage is not supported, or the model is damaged, has another format,
            names a factory that is not trusted or cannot be imported, or, without ``trust``, has pickled parts; or
            there is no such GPU.
    """
    trusted, stage = Trust.of(trust, modules), _trained(SavedStage.open(os.fspath(path)))
    if stage.class_name == _TORCH_MODEL:
        return _predictor(stage, device, trusted)
    if stage.class_name not in PIPELINES:
        raise InvalidInput(
            f"{public(stage.uri)} holds a {stage.class_name}; expected a TorchModel, or a PipelineModel with one. "
            "Other models predict on Spark, by transform."
        )

    def torch_stage(saved: SavedStage) -> TorchStage:
        saved = _trained(saved)
        predictor, types = _predictor(saved, device, trusted), saved.metadata["sparkdl"].get("columnTypes", {})
        return TorchStage(saved.uid, tuple(predictor.inputs), tuple(predictor.outputs), predictor, types)

    return SavedPipeline(read_pipeline(stage.uri, dict.fromkeys((_TORCH_MODEL, _SEARCHED_MODEL), torch_stage)))


def _trained(stage: SavedStage) -> SavedStage:
    """The model itself; of a search, the best one."""
    return SavedStage.open(files.join(stage.uri, "best")) if stage.class_name == _SEARCHED_MODEL else stage


def _predictor(stage: SavedStage, device: str, trust: Trust) -> Predictor:
    path = public(stage.uri)
    saved = SavedFolder(path, stage.uri, fields_of(path, stage.metadata, _TORCH_MODEL), trust)
    try:
        trained, param_map = TrainedModule.load(saved), stage.metadata["paramMap"]
        only = {"inputCols": [param_map["featuresCol"]]} if "featuresCol" in param_map else {}
        return Predictor.of(trained, {**stage.params, **saved.objects(), **only, "device": device})
    except (KeyError, TypeError, AttributeError, AssertionError) as error:
        raise InvalidInput(f"{path} is damaged: {type(error).__name__}: {error}.") from error
