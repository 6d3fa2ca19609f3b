"""What MLflow loads a logged model with: ``mlflow.pyfunc.load_model`` imports this module by name.

Whoever loads a model of MLflow runs the code that it names, so what is pickled in one is loaded as well.
"""

from __future__ import annotations

from sparkdl.ml.inference.local import InProcess
from sparkdl.ml.persistence.local_folder import read_folder


def _load_pyfunc(path: str) -> InProcess:
    return InProcess(read_folder(path, trust=True))
