"""Loads a logged model; ``mlflow.pyfunc.load_model`` imports this module by name.

MLflow runs the code that a logged model names, so pickled parts are loaded as well.
"""

from __future__ import annotations

from sparkdl.serving.loading import load_predictor
from sparkdl.serving.predictor import Predictor
from sparkdl.serving.saved_pipeline import SavedPipeline


def _load_pyfunc(path: str) -> Predictor | SavedPipeline:
    return load_predictor(path, trust=True)
