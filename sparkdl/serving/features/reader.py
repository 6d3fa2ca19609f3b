"""Reads a saved PipelineModel, and computes its columns stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparkdl.errors import InvalidInput
from sparkdl.io.redaction import public
from sparkdl.serving.features.assembling import FeatureHasher, VectorAssembler
from sparkdl.serving.features.column import Column
from sparkdl.serving.features.labels import IndexToString, OneHotEncoderModel, StringIndexerModel
from sparkdl.serving.features.numbers import Binarizer, Bucketizer, ImputerModel
from sparkdl.serving.features.saved_stage import SavedStage
from sparkdl.serving.features.scaling import (
    MaxAbsScalerModel,
    MinMaxScalerModel,
    Normalizer,
    RobustScalerModel,
    StandardScalerModel,
)
from sparkdl.serving.features.stage import Columns, FeatureStage

_STAGES: tuple[type[FeatureStage], ...] = (
    Binarizer,
    Bucketizer,
    FeatureHasher,
    ImputerModel,
    IndexToString,
    MaxAbsScalerModel,
    MinMaxScalerModel,
    Normalizer,
    OneHotEncoderModel,
    RobustScalerModel,
    StandardScalerModel,
    StringIndexerModel,
    VectorAssembler,
)
_BY_CLASS = {f"org.apache.spark.ml.feature.{kind.__name__}": kind for kind in _STAGES}
PIPELINES = ("org.apache.spark.ml.PipelineModel", "pyspark.ml.pipeline.PipelineModel")

SUPPORTED = tuple(kind.__name__.removesuffix("Model") for kind in _STAGES)
"""The names of the feature stages; a fitted one has the suffix ``Model``, if another class fits it."""

Readers = Mapping[str, Callable[[SavedStage], FeatureStage]]
"""Further stages, by the class in their metadata."""


@dataclass(frozen=True)
class FeaturePipeline:
    """The stages of a saved pipeline, in order; those of an inner pipeline are in its place."""

    stages: tuple[FeatureStage, ...]

    @property
    def inputs(self) -> list[str]:
        """The columns that the stages read and none of them adds before, in the order of their first use."""
        produced: set[str] = set()
        inputs: dict[str, None] = {}
        for stage in self.stages:
            inputs.update(dict.fromkeys(name for name in stage.inputs if name not in produced))
            produced.update(stage.outputs)
        return list(inputs)

    def needed(self, columns: Iterable[str]) -> FeaturePipeline:
        """The stages on which columns depend; an indexer of the label is none."""
        names, necessary = {*columns}, list[FeatureStage]()
        for stage in reversed(self.stages):
            if names & {*stage.outputs}:
                necessary.insert(0, stage)
                names.update(stage.inputs)
        return FeaturePipeline(tuple(necessary))

    def transform(self, columns: Columns) -> dict[str, Column]:
        """The columns, and those that the stages add; raises ``InvalidInput`` if a stage cannot read one."""
        result = dict(columns)
        for stage in self.stages:
            result = stage.transform(result)
        return result


def read_pipeline(uri: str, others: Readers) -> FeaturePipeline:
    """Read the PipelineModel in a folder, on any filesystem of pyarrow; ``others`` has readers of further stages.

    Raises:
        InvalidInput: the folder holds no pipeline, or a stage that cannot be read.
    """
    saved = SavedStage.open(uri)
    if saved.class_name not in PIPELINES:
        raise InvalidInput(f"{public(uri)} holds a {saved.class_name}; expected a saved PipelineModel.")
    stages = list(_stages(saved, others))
    labels: dict[str, tuple[str, ...]] = {}
    for at, stage in enumerate(stages):
        if isinstance(stage, IndexToString) and not stage.labels:  # Spark finds them in the column's metadata
            if not (indexer_labels := labels.get(stage.inputs[0])):
                raise InvalidInput(without_labels(str(stage), stage.inputs[0]))
            stages[at] = replace(stage, labels=indexer_labels)
        labels |= dict.fromkeys(stage.outputs, ())
        if isinstance(stage, StringIndexerModel):
            unknown = ("__unknown",) * stage.keep  # Spark's name
            labels |= {name: one + unknown for name, one in zip(stage.outputs, stage.labels, strict=True)}
    return FeaturePipeline(tuple(stages))


def _stages(saved: SavedStage, others: Readers) -> Iterable[FeatureStage]:
    for uri in saved.stage_uris():
        inner = SavedStage.open(uri)
        if inner.class_name in PIPELINES:
            yield from _stages(inner, others)
        elif inner.class_name in others:
            yield others[inner.class_name](inner)
        elif inner.class_name in _BY_CLASS:
            kind = _BY_CLASS[inner.class_name]
            check(kind.__name__, inner.params)
            try:
                yield kind.of(inner)
            except (KeyError, TypeError, ValueError, IndexError) as error:
                raise InvalidInput(f"{inner.uri} is damaged: {type(error).__name__}: {error}.") from error
        else:
            raise InvalidInput(unsupported(inner.class_name.rpartition(".")[2]))


def check(name: str, params: Mapping[str, Any]) -> None:
    """Check a stage; raises ``InvalidInput`` if it drops rows, since a server has to answer for each."""
    if params.get("handleInvalid") == "skip":
        raise InvalidInput(
            f"handleInvalid of {name} is 'skip', which drops rows; a registered model predicts every row. Expected "
            "'error' or 'keep'."
        )


def unsupported(name: str) -> str:
    """The message about a stage that only Spark computes."""
    return (
        f"the stage {name} cannot be served without Spark; expected {', '.join(SUPPORTED)}, Pipeline, and a "
        "PyTorch estimator of sparkdl. Leave out register, or compute its columns with clean.columns."
    )


def without_labels(stage: str, column: str) -> str:
    """The message about an IndexToString without labels."""
    return f"{stage} has no labels, and no StringIndexer adds its column {column!r}; expected labels=[...]."
