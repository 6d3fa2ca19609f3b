"""Loads a registered pipeline; ``mlflow.pyfunc.load_model`` imports this module by name.

MLflow runs the code that a logged model names, so pickled parts are loaded as well.
"""

from __future__ import annotations

from sparkdl.ml.inference.saved_pipeline import SavedPipeline


def _load_pyfunc(path: str) -> SavedPipeline:
    return SavedPipeline.load(path, trust=True)
