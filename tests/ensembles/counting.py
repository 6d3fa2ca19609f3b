"""Estimators that record their rows, and fail where a test wants them to."""

from __future__ import annotations

from pyspark.ml import Estimator, Model
from pyspark.ml.param.shared import HasSeed, HasWeightCol
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable


class CountingModel(Model, DefaultParamsReadable, DefaultParamsWritable):
    def _transform(self, dataset):
        return dataset


class Weightless(Estimator, HasSeed):
    """Records its rows by seed, and then calls ``then``."""

    calls: dict[int, tuple] = {}  # noqa: RUF012 - tests read it
    then = staticmethod(lambda seed: None)

    def __init__(self, seed):
        super().__init__()
        self._set(seed=seed)

    def _fit(self, dataset):
        Weightless.calls[self.getSeed()] = sorted(map(tuple, dataset.collect())), dataset.columns
        Weightless.then(self.getSeed())
        return CountingModel()


class Counting(Weightless, HasWeightCol):
    """The same with weights."""

    def __init__(self, seed, weight=None):
        super().__init__(seed)
        if weight:
            self._set(weightCol=weight)
