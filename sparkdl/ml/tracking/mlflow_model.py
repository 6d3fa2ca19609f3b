"""A trained model as a model of MLflow: ``mlflow.pyfunc.load_model`` gives it back, and it predicts without Spark.

What is logged is the saved form of ``TorchModel`` by the same rules: safetensors weights and a factory by its name;
where it has none that can be imported, as in a notebook, a torch.export program; and only where torch cannot export it,
a pickle by value. A factory that is named has to be importable where the model is loaded: ``code_paths`` go with it.
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
_LOADER = "sparkdl.ml.tracking.pyfunc"
_NAME = "model"


def log_model(client: Any, run: Any, model: TorchModel, *, code_paths: Sequence[str], step: int) -> Any:
    """Log a model.

    Args:
        client: of MLflow.
        run: that it belongs to.
        model: what is logged.
        code_paths: files and folders that are on the Python path where it is loaded.
        step: of the run, after which it is as it is.

    Returns:
        It, as MLflow has it.
    """
    logged = client.create_logged_model(
        run.info.experiment_id, name=_NAME, source_run_id=run.info.run_id, params=run.data.params
    )
    try:
        with tempfile.TemporaryDirectory(prefix="sparkdl-") as folder:
            path = os.path.join(folder, "model")
            _save(model, folder, path, logged, code_paths)
            client.log_model_artifacts(logged.model_id, path)
    except BaseException:
        client.finalize_logged_model(logged.model_id, "FAILED")
        raise
    client.finalize_logged_model(logged.model_id, "READY")
    output = required("mlflow.entities", EXTRA).LoggedModelOutput(logged.model_id, step)
    client.log_outputs(run.info.run_id, [output])
    return logged


def register(client: Any, logged: Any, name: str) -> None:
    """Make a logged model the next version of a registered one, which need not be there.

    Args:
        client: of MLflow.
        logged: the logged model.
        name: of the registered one.
    """
    try:
        client.create_registered_model(name)
    except required("mlflow.exceptions", EXTRA).MlflowException as error:
        if error.error_code not in ("RESOURCE_ALREADY_EXISTS", "ALREADY_EXISTS"):
            raise
    # Its own URI, models:/<id>, would be looked up in the store that MLflow takes by itself, which may be another.
    client.create_model_version(name, logged.artifact_location, run_id=logged.source_run_id, model_id=logged.model_id)


def _save(model: TorchModel, folder: str, path: str, logged: Any, code_paths: Sequence[str]) -> None:
    data = os.path.join(folder, "data")
    write_folder(model, data)
    described = required("mlflow.models", EXTRA).Model(
        artifact_path=logged.artifact_location,
        run_id=logged.source_run_id,
        model_uuid=logged.model_id,
        model_id=logged.model_id,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*input example was not provided")  # the signature is no guess
        required("mlflow.pyfunc", EXTRA).save_model(
            path,
            loader_module=_LOADER,
            data_path=data,
            code_paths=list(code_paths) or None,
            mlflow_model=described,
            signature=_signature(model),
            pip_requirements=_requirements(),
        )


def _signature(model: TorchModel) -> Any:
    """What MLflow checks and converts before the model is asked; None where that is not known."""
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
    names = ("sparkdl-torch", "torch", "mlflow-skinny")
    return [f"{name}=={metadata.version(name).partition('+')[0]}" for name in names]
