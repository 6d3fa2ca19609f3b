"""Loads a logged model; ``mlflow.pyfunc.load_model`` imports this module by name.

MLflow runs the code that a logged model names, so pickled parts are loaded as well.
"""

from __future__ import annotations

from sparkdl.ml.inference.local import InProcess
from sparkdl.ml.persistence.local_folder import read_folder


def _load_pyfunc(path: str) -> InProcess:
    return InProcess(read_folder(path, trust=True))
