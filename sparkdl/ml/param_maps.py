"""Fits with param maps: each keeps its run in a directory of its own.

A search calls ``fit`` for every map on the rows of every fold. In one ``runDir`` the second fit would be refused, as
another run, or be given the first one's result. So a fit with a map keeps its run in ``runDir/<hash>``, of the map's
values and the rows it is given. The same search again finds them: it goes on where it was lost, or takes no step.

pyspark applies a map to a copy: ``fit(df, map)`` is ``copy(map).fit(df)``, and of a pipeline with a map every stage is
copied so, also where the map is empty or has nothing for it. So it is the copy that remembers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pyspark.ml import Estimator
from pyspark.ml.param import Param
from pyspark.sql import DataFrame

from sparkdl.data.columns import Columns
from sparkdl.io import files
from sparkdl.ml.model import TorchModel
from sparkdl.ml.params import TrainingParams
from sparkdl.ml.persistence.describe import describe
from sparkdl.spark.fingerprint import fingerprint

Mapped = TypeVar("Mapped", bound="MappedEstimator")


class MappedEstimator(TrainingParams, Estimator[TorchModel]):
    """An estimator that remembers which of its Params a map has set."""

    _map: Mapping[str, Any] | None = None  # by name; None where there was no map

    def copy(self: Mapped, extra: dict[Param[Any], Any] | None = None) -> Mapped:
        """A copy with the same uid.

        Args:
            extra: other values for Params of the copy, whose run is then kept in ``runDir/<hash>``; None for none.
                With another ``runDir`` among them it is kept there.
        """
        copied = super().copy(extra)
        if extra is not None:
            own = {each.name: copied.getOrDefault(each) for each in extra if each.parent == self.uid}
            copied._map = None if "runDir" in own else {**(self._map or {}), **own}
        return copied

    def fitMultiple(
        self, dataset: DataFrame, paramMaps: Sequence[dict[Param[Any], Any]]
    ) -> Iterator[tuple[int, TorchModel]]:
        """Fit a model for each map; an empty one of several is a map as well."""
        return super(MappedEstimator, self.copy({})).fitMultiple(dataset, paramMaps)

    def run_directory(self, dataset: DataFrame, columns: Columns) -> str | None:
        """Where a fit keeps its run; None where there is no ``runDir``.

        Args:
            dataset: the rows; after a map they are computed once for this.
            columns: what is read of them.

        Raises:
            InvalidInput: a column is missing or cannot become a tensor.
        """
        directory = self.getRunDir()
        if directory is None or self._map is None:
            return directory
        return files.join(directory, map_hash(self._map, fingerprint(dataset, columns)))


def map_hash(values: Mapping[str, Any], rows: str) -> str:
    """Hash a param map and rows; equal across processes.

    Args:
        values: of the map, by the names of the Params.
        rows: their fingerprint.

    Returns:
        16 hexadecimal digits.
    """
    found = hashlib.sha256(rows.encode())
    for name, value in sorted(values.items()):
        found.update(f"\n{name}={json.dumps(describe(value))}".encode())
    return found.hexdigest()[:16]
