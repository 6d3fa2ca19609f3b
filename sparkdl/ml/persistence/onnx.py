"""Models in the ONNX format, by torch's exporter, for onnxruntime and other runtimes without torch."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from sparkdl.errors import InvalidInput
from sparkdl.io.optional_imports import required
from sparkdl.ml.persistence.export_check import Archive

OUTPUT = "output"
"""The name of the output."""


def to_onnx(program: bytes, names: Sequence[str] | None = None) -> bytes:
    """Convert the archive of a torch.export program to ONNX, weights included, for batches of any size.

    ``names`` are those of the inputs; default: of the arguments of ``forward``.

    Raises:
        InvalidInput: ONNX has no such operator, or the packages ``onnx`` and ``onnxscript`` are missing.
    """
    required("onnxscript", "onnx")
    exported = torch.export.load(io.BytesIO(Archive.read(program).sanitized()))
    try:
        with _quiet():
            made: Any = torch.onnx.export(exported, (), input_names=names, output_names=[OUTPUT], dynamo=True)
    except Exception as error:  # torch's exporter raises many types
        reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        raise InvalidInput(f"the model cannot be exported to ONNX: {reason}") from error
    return _with_batch(made.model_proto)


def _with_batch(model: Any) -> bytes:
    """The bytes of a model whose first axis of rows has the name ``batch``, not the name of torch's symbol."""
    symbol = model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == symbol:
                dim.dim_param = "batch"
    written: bytes = model.SerializeToString()
    return written


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what torch's exporter says about its own modules, and about packages that the model does not use."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
