"""A trained model in MLflow's format; ``mlflow.pyfunc.load_model`` loads it, and it predicts without Spark.

It holds the folder that ``TorchModel`` saves. A named factory must be importable where the model is loaded:
``code_paths`` are logged with the model, and MLflow adds them to the Python path when it loads the model.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np

from sparkdl.ml.inference.local import input_types, output_types
from sparkdl.ml.model import TorchModel
from sparkdl.ml.persistence.local_folder import write_folder
from sparkdl.ml.tracking.optional_imports import required

EXTRA = "mlflow"


def log_model(client: Any, run: Any, model: TorchModel, *, code_paths: Sequence[str], step: int) -> Any:
    """Log a model after the run's last step, and return the logged model of MLflow."""
    logged = client.create_logged_model(
        run.info.experiment_id, name="model", source_run_id=run.info.run_id, params=run.data.params
    )
    try:
        with tempfile.TemporaryDirectory(prefix="sparkdl-") as folder:
            _save(model, folder, logged, code_paths)
            client.log_model_artifacts(logged.model_id, os.path.join(folder, "model"))
    except BaseException:
        client.finalize_logged_model(logged.model_id, "FAILED")
        raise
    client.finalize_logged_model(logged.model_id, "READY")
    output = required("mlflow.entities", EXTRA).LoggedModelOutput(logged.model_id, step)
    client.log_outputs(run.info.run_id, [output])
    return logged


def register(client: Any, logged: Any, name: str) -> None:
    """Register a logged model as the next version of the model ``name``, which is created if missing."""
    try:
        client.create_registered_model(name)
    except required("mlflow.exceptions", EXTRA).MlflowException as error:
        if error.error_code not in ("RESOURCE_ALREADY_EXISTS", "ALREADY_EXISTS"):
            raise
    # MLflow would look up the model's URI, models:/<id>, in its current store, which may be another one.
    client.create_model_version(name, logged.artifact_location, run_id=logged.source_run_id, model_id=logged.model_id)


def _save(model: TorchModel, folder: str, logged: Any, code_paths: Sequence[str]) -> None:
    data = os.path.join(folder, "data")
    write_folder(model, data)
    description = required("mlflow.models", EXTRA).Model(
        artifact_path=logged.artifact_location,
        run_id=logged.source_run_id,
        model_uuid=logged.model_id,
        model_id=logged.model_id,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*input example was not provided")  # the signature is given
        required("mlflow.pyfunc", EXTRA).save_model(
            os.path.join(folder, "model"),
            loader_module="sparkdl.ml.tracking.pyfunc",
            data_path=data,
            code_paths=list(code_paths) or None,
            mlflow_model=description,
            signature=_signature(model),
            pip_requirements=_requirements(),
        )


def _signature(model: TorchModel) -> Any:
    """MLflow's signature of the model; None if its inputs are unknown."""
    types, schema = required("mlflow.types", EXTRA), required("mlflow.types.schema", EXTRA)
    inputs = input_types(model)
    if inputs is None or any(not hasattr(np, dtype) for _, _, dtype in inputs):
        return None
    specs = [types.TensorSpec(np.dtype(dtype), (-1, *shape), name) for name, shape, dtype in inputs]
    outputs = [
        types.ColSpec(schema.Array(types.DataType[kind]) if array else types.DataType[kind], name)
        for name, kind, array in output_types(model)
    ]
    return required("mlflow.models", EXTRA).ModelSignature(types.Schema(specs), types.Schema(outputs))


def _requirements() -> list[str]:
    extras = {"sparkdl-torch": "[spark]", "torch": "", "mlflow-skinny": ""}
    return [f"{name}{extra}=={metadata.version(name).partition('+')[0]}" for name, extra in extras.items()]
