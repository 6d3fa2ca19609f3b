"""Fits with param maps, each with its own run directory.

A search calls ``fit`` for every map on the rows of every fold. If all fits shared ``runDir``, the second would fail as
another run, or return the first one's model. So a fit with a map uses ``runDir/<hash>``, a hash of the map's values and
the rows. If the same search runs again, each fit resumes its run, or returns the finished model.
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

WithMap = TypeVar("WithMap", bound="ParamMapEstimator")


class ParamMapEstimator(TrainingParams, Estimator[TorchModel]):
    """An estimator that stores the Params which a map has set."""

    _map: Mapping[str, Any] | None = None  # by name; None without a map

    def copy(self: WithMap, extra: dict[Param[Any], Any] | None = None) -> WithMap:
        """Copy the estimator with the same uid.

        Args:
            extra: values for Params of the copy, whose fits then use ``runDir/<hash>``, or the ``runDir`` in ``extra``;
                default: none.
        """
        copied = super().copy(extra)
        # pyspark's fit(df, map) is copy(map).fit(df). A pipeline copies all its stages with the map, so any map counts.
        if extra is not None:
            values = {param.name: copied.getOrDefault(param) for param in extra if param.parent == self.uid}
            copied._map = None if "runDir" in values else {**(self._map or {}), **values}
        return copied

    def fitMultiple(
        self, dataset: DataFrame, paramMaps: Sequence[dict[Param[Any], Any]]
    ) -> Iterator[tuple[int, TorchModel]]:
        """Fit a model for each map; an empty map counts as a map."""
        return super(ParamMapEstimator, self.copy({})).fitMultiple(dataset, paramMaps)

    def run_directory(self, dataset: DataFrame, columns: Columns) -> str | None:
        """The run directory of a fit; None without a ``runDir``. After a map, the rows' hash takes one pass over them.

        Raises:
            InvalidInput: a column is missing or cannot become a tensor.
        """
        directory = self.getRunDir()
        if directory is None or self._map is None:
            return directory
        return files.join(directory, map_hash(self._map, fingerprint(dataset, columns)))


def map_hash(values: Mapping[str, Any], rows: str) -> str:
    """Hash a map's values and the fingerprint of the rows to 16 hexadecimal digits, equal across processes."""
    lines = [f"\n{name}={json.dumps(describe(value))}" for name, value in sorted(values.items())]
    return hashlib.sha256((rows + "".join(lines)).encode()).hexdigest()[:16]
