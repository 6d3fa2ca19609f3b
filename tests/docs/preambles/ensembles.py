"""docs/ensembles.md: rows, a model, and estimators of pyspark.ml."""

from __future__ import annotations

from functools import partial

import torch
from pyspark.ml.classification import DecisionTreeClassifier, LogisticRegression, RandomForestClassifier
from pyspark.ml.evaluation import MulticlassClassificationEvaluator

from tests.docs.digits import Net, frames

OF_PYSPARK = (
    DecisionTreeClassifier,
    LogisticRegression,
    RandomForestClassifier,
    MulticlassClassificationEvaluator,
)


def page(execute, folder, spark):
    names = {each.__name__: each for each in OF_PYSPARK}
    found = execute({"Net": Net, "partial": partial, "torch": torch, **names, **frames(spark)})
    assert len(found["model"].models) == 2
    assert (folder / "runs/digits/members").is_dir()
