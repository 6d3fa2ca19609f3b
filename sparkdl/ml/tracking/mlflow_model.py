"""A trained model in MLflow's format; ``mlflow.pyfunc.load_model`` loads it, and it predicts without Spark.

It holds the folder that a ``TorchModel`` or a ``PipelineModel`` saves. A named factory must be importable where the
model is loaded: ``code_paths`` are logged with the model, and MLflow adds them to the Python path when it loads it.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np

from sparkdl.io.optional_imports import required
from sparkdl.ml.model import TorchModel
from sparkdl.ml.persistence.reader_writer import Writer
from sparkdl.ml.tracking.connection import EXTRA
from sparkdl.serving.model_cache import CachedModel
from sparkdl.serving.predictor import Predictor


@dataclass(frozen=True)
class ServedModel:
    """A model for MLflow: ``write`` writes its data into a new folder of this host; ``signature`` may be unknown."""

    write: Callable[[str], object]
    signature: Any


def served_torch_model(model: TorchModel) -> ServedModel:
    """A ``TorchModel`` for MLflow."""
    return ServedModel(Writer(model).saveImpl, _signature(model.predictor(CachedModel(model.module()))))


def log_model(client: Any, run: Any, model: ServedModel, *, code_paths: Sequence[str], step: int = 0) -> Any:
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


def register(client: Any, logged: Any, name: str, tags: Mapping[str, str] | None = None) -> Any:
    """Register a logged model as the next version of the model ``name``, which is created if missing; return it."""
    try:
        client.create_registered_model(name)
    except required("mlflow.exceptions", EXTRA).MlflowException as error:
        if error.error_code not in ("RESOURCE_ALREADY_EXISTS", "ALREADY_EXISTS"):
            raise
    # MLflow would look up the model's URI, models:/<id>, in its current store, which may be another one.
    return client.create_model_version(
        name, logged.artifact_location, run_id=logged.source_run_id, tags=tags, model_id=logged.model_id
    )


def _save(model: ServedModel, folder: str, logged: Any, code_paths: Sequence[str]) -> None:
    data = os.path.join(folder, "data")
    model.write(data)
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
            signature=model.signature,
            pip_requirements=_requirements(),
        )


def _signature(predictor: Predictor) -> Any:
    types = required("mlflow.types", EXTRA)
    inputs = predictor.input_types
    if inputs is None or any(not hasattr(np, dtype) for _, _, dtype in inputs):
        return None
    specs = [types.TensorSpec(np.dtype(dtype), (-1, *shape), name) for name, shape, dtype in inputs]
    return required("mlflow.models", EXTRA).ModelSignature(types.Schema(specs), columns_schema(predictor.output_types))


def columns_schema(columns: Sequence[tuple[str, str, int]]) -> Any:
    """MLflow's schema of columns: name, name of the type, and the depth of arrays, 0 for none."""
    types, schema = required("mlflow.types", EXTRA), required("mlflow.types.schema", EXTRA)
    specs = []
    for name, kind, depth in columns:
        of: Any = types.DataType[kind]
        for _ in range(depth):
            of = schema.Array(of)
        specs.append(types.ColSpec(of, name))
    return types.Schema(specs)


def _requirements() -> list[str]:
    # The model's own module may import pyspark, which sparkdl does not need here.
    extras = {"sparkdl-torch": "[spark]", "torch": "", "mlflow-skinny": ""}
    return [f"{name}{extra}=={metadata.version(name).partition('+')[0]}" for name, extra in extras.items()]
