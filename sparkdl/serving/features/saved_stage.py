"""The folder of a saved stage: its Params as JSON, and its fitted data as Parquet, as pyspark.ml writes both."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.redaction import public
from sparkdl.serving.features.column import Array


@dataclass(frozen=True)
class SavedStage:
    """A saved stage: the ``uri`` of its folder, and ``metadata``, the object in ``metadata/part-*``."""

    uri: str
    metadata: dict[str, Any]

    @staticmethod
    def open(uri: str) -> SavedStage:
        """Read the metadata; raises ``InvalidInput`` if the folder holds no stage."""
        text = b"".join(_parts(uri, "metadata"))
        try:
            metadata = json.loads(text)
            return SavedStage(uri, {"class": metadata["class"], "uid": metadata["uid"], **metadata})
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"{public(uri)} holds no saved stage of pyspark.ml: metadata: {error}.") from error

    @property
    def uid(self) -> str:
        """The identifier of the stage."""
        return str(self.metadata["uid"])

    @property
    def class_name(self) -> str:
        """The class that wrote the stage: of the JVM, or of Python."""
        return str(self.metadata["class"])

    @cached_property
    def params(self) -> dict[str, Any]:
        """The Params by name, with their defaults."""
        return {**self.metadata.get("defaultParamMap", {}), **self.metadata.get("paramMap", {})}

    def double(self, name: str) -> float:
        """A Param of type double; JSON has texts for NaN, Inf and -Inf."""
        return float(self.params[name])

    @cached_property
    def data(self) -> dict[str, Any]:
        """The one row of the fitted data, by column; raises ``InvalidInput`` if there is not one row."""
        try:
            tables = [pq.read_table(pa.BufferReader(part)) for part in _parts(self.uri, "data")]
            (row,) = [row for table in tables for row in table.to_pylist()]
        except (ValueError, pa.ArrowException) as error:
            raise InvalidInput(f"{public(self.uri)} is damaged: data: {error}.") from error
        return dict(row)

    def vector(self, name: str) -> Array:
        """A vector of the fitted data, float64."""
        saved = self.data[name]
        if saved["type"] == 1:
            return np.array(saved["values"], dtype=np.float64)
        vector = np.zeros(saved["size"])
        vector[saved["indices"]] = saved["values"]
        return vector

    def stage_uris(self) -> list[str]:
        """The folders of a pipeline's stages, in order."""
        uids = self.params["stageUids"]
        digits = len(str(len(uids)))
        return [files.join(self.uri, f"stages/{at:0{digits}d}_{uid}") for at, uid in enumerate(uids)]


def _parts(uri: str, name: str) -> list[bytes]:
    folder = files.Folder.of(uri)
    names = sorted(part for part in folder.sizes(name) if part.startswith("part-"))
    if not names:
        raise InvalidInput(f"{public(uri)} holds no saved stage of pyspark.ml: {name}/part-* is missing.")
    return [folder.read(f"{name}/{part}") for part in names]
