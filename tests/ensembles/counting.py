"""Estimators that note what they are given, and fail where a test wants them to."""

from __future__ import annotations

from pyspark.ml import Estimator, Model
from pyspark.ml.param.shared import HasSeed, HasWeightCol
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable


class CountingModel(Model, DefaultParamsReadable, DefaultParamsWritable):
    """A model without anything in it."""

    def _transform(self, dataset):
        return dataset


class Weightless(Estimator, HasSeed):
    """Notes the rows it is given by seed, and then does what a test wants of it."""

    calls: dict[int, tuple] = {}  # noqa: RUF012 - what a test looks at
    then = staticmethod(lambda seed: None)

    def __init__(self, seed):
        super().__init__()
        self._set(seed=seed)

    def _fit(self, dataset):
        Weightless.calls[self.getSeed()] = sorted(map(tuple, dataset.collect())), dataset.columns
        Weightless.then(self.getSeed())
        return CountingModel()


class Counting(Weightless, HasWeightCol):
    """One that takes weights."""

    def __init__(self, seed, weight=None):
        super().__init__(seed)
        if weight:
            self._set(weightCol=weight)
