"""Models in the ONNX format, by torch's exporter, for onnxruntime and other runtimes without torch."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch

from sparkdl.errors import InvalidInput
from sparkdl.io.optional_imports import required
from sparkdl.serving.format.export import compare, examples, first_line
from sparkdl.serving.format.export_check import Archive

OUTPUT = "output"
"""The name of the output."""


def to_onnx(program: bytes, names: Sequence[str] | None = None) -> bytes:
    """Convert the archive of a torch.export program to ONNX, weights included, for batches of any size.

    ``names`` are those of the inputs; default: of the arguments of ``forward``. If onnxruntime is installed, its
    outputs are compared with the program's.

    Raises:
        InvalidInput: ONNX or onnxruntime has no such operator, the outputs differ, or the packages ``onnx`` and
            ``onnxscript`` are missing.
    """
    required("onnxscript", "onnx")
    exported = torch.export.load(io.BytesIO(Archive.read(program).sanitized()))
    try:
        with _quiet():
            onnx_program: Any = torch.onnx.export(exported, (), input_names=names, output_names=[OUTPUT], dynamo=True)
    except Exception as error:  # torch's exporter raises many types
        raise InvalidInput(f"the model cannot be exported to ONNX: {first_line(error)}") from error
    written = _with_batch(onnx_program.model_proto)
    if find_spec("onnxruntime"):
        _check(written, exported)
    return written


def _check(model: bytes, exported: Any) -> None:
    values = [node.meta["val"] for node in exported.graph.nodes if node.name in exported.graph_signature.user_inputs]
    signature = [(list(value.shape[1:]), str(value.dtype).removeprefix("torch.")) for value in values]

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        names = [value.name for value in session.get_inputs()]
        arrays = session.run(None, dict(zip(names, (tensor.numpy() for tensor in inputs), strict=True)))
        return list(map(torch.from_numpy, arrays))

    try:
        session = required("onnxruntime", "onnx").InferenceSession(model)
        compare(exported.module(), run, examples(signature))
    except Exception as error:  # onnxruntime has a class for each of its errors
        wide = any(tensor.dtype == torch.float64 for tensor in exported.state_dict.values())
        advice = " onnxruntime lacks some operators of float64: train with precision='fp32'." if wide else ""
        raise InvalidInput(f"the model cannot be exported to ONNX: {first_line(error)}{advice}") from error


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
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
