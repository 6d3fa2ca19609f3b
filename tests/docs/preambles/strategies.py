"""docs/strategies.md: rows, and the imports of its code."""

from __future__ import annotations

from functools import partial

import torch
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from torch import nn

from sparkdl import LBFGS, AllReduce, ParallelSGD, TorchClassifier
from tests.docs.digits import frames

NAMES = (partial, torch, nn, MulticlassClassificationEvaluator, LBFGS, AllReduce, ParallelSGD, TorchClassifier)


def page(execute, folder, spark):
    names = {each.__name__.rpartition(".")[2]: each for each in NAMES}
    found = execute(names | frames(spark))
    assert "round" in found["model"].history[0]  # the last strategy's
