"""Members with known weights, and their outputs by NumPy."""

from __future__ import annotations

import numpy as np
import torch
from pyspark.ml import PipelineModel
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import functions as F
from scipy.special import expit, softmax
from torch import nn

from sparkdl.io.weights import pack
from sparkdl.ml.model import TorchModel
from tests.sessions import frame

X = np.random.default_rng(0).normal(size=(50, 3))
WEIGHTS = [1.0, 0.5, 1.25]
VECTORS = ("rawPrediction", "probability", "prediction")
CLASSES = 3


def linear(outputs=CLASSES):
    return nn.Linear(3, outputs)


def one_score():
    return linear(1)


def moved(factory, seed, dtype=torch.float32):
    """The factory's module with other weights."""
    module, random = factory().to(dtype), torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=random, dtype=dtype)
    return module


def member(factory=linear, kind="classifier", seed=0, dtype=torch.float32, **others):
    made = TorchModel(factory=factory, weights=pack(moved(factory, seed, dtype)), kind=kind, **others)
    return made.setInputCols(["x"])


def members(factory=linear, kind="classifier", count=3, **others):
    return [member(factory, kind, seed, **others) for seed in range(count)]


def chained(models):
    """The same members, which then score rows one after the other."""
    return [PipelineModel([model]) for model in models]


def data(**others):
    return frame({"row": np.arange(len(X)), "x": X} | others)


def found(model, rows, *names):
    """The output columns as arrays, in the order of the rows."""
    made = model.transform(rows)
    vectors = {field.name for field in made.schema if isinstance(field.dataType, VectorUDT)}
    chosen = [vector_to_array(name).alias(name) if name in vectors else F.col(name) for name in names]
    collected = made.orderBy("row").select(*chosen).collect()
    return [np.array([row[name] for row in collected], np.float64) for name in names]


def scores(models, x=X):
    with torch.no_grad():
        return np.stack([model.module().double()(torch.from_numpy(x)).numpy() for model in models])


def probabilities(models):
    raw = scores(models)
    chance = expit(raw[..., 0])
    return np.stack([1 - chance, chance], -1) if raw.shape[-1] == 1 else softmax(raw, -1)
