"""A model on Arrow data: reads input columns, returns one struct of output columns."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from sparkdl.data.arrow import decode, decode_ragged
from sparkdl.data.batch import DTYPES, Input, Ragged, arguments, device_tensors, move_to, promote_ints
from sparkdl.data.columns import Columns, InputColumn, listed
from sparkdl.data.prefetch import prefetch, prefetch_to
from sparkdl.data.transforms import Collate, collated
from sparkdl.data.validation import Array
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import adopt, unpack
from sparkdl.io.weights_file import Weights, WeightsFile, assign, read_weights
from sparkdl.serving.batch_size import batch_rows, batches
from sparkdl.serving.format.export import Signature
from sparkdl.serving.model_cache import CPU, CachedModel
from sparkdl.serving.outputs import Outputs
from sparkdl.training.layouts.table import without_rows
from sparkdl.training.layouts.table_files import keep_saved
from sparkdl.training.objective.module_factory import ModelFactory, new_module
from sparkdl.training.objective.objective import Objective
from sparkdl.training.objective.probe import row_shapes
from sparkdl.training.rng import kept_random_state


@dataclass(frozen=True)
class Scorer:
    """Scores rows, in a Python worker or in this process.

    ``weights`` are empty if the factory carries them, as a ``Program`` does. ``precision`` and ``signature`` are the
    training's, and ``device`` is ``"cpu"`` or ``"cuda"``. The model gets NaN and infinite values unchanged.
    """

    factory: ModelFactory | nn.Module
    weights: Weights
    outputs: Outputs
    precision: str
    columns: Columns
    collate: Collate | None = None
    device: str = "cpu"
    signature: Signature | None = None

    def scores(
        self, batches: Iterable[tuple[pa.Array, ...] | pa.Array], loaded: CachedModel | None = None
    ) -> Iterator[pa.Array]:
        """Yield a struct array for each batch, a tuple of input arrays; Spark passes a single column without a tuple.

        Raises ``InvalidInput`` if the data cannot be read, or the model's output has the wrong shape for its kind.
        """
        loaded = loaded or CachedModel(self.module())
        decoded = map(self._inputs, batches)
        # On a GPU the next rows are decoded while these are scored.
        for inputs in prefetch(decoded, depth=1) if loaded.device.type == "cuda" else decoded:
            if inputs is not None:
                raw = self._raw(loaded, inputs)
                yield self.outputs.arrays(raw if raw.dtype == torch.float64 else raw.float())
            else:
                yield self.outputs.none(self.columns.floating)

    def returned(self) -> pa.StructType:
        """The type of the structs that ``scores`` yields."""
        return self.outputs.type(self.columns.floating)

    def module(self) -> nn.Module:
        """The module with its weights, in evaluation mode; large tables are mapped."""
        return restored(self.factory, self.weights, self.precision, mapped=True)

    def _raw(self, loaded: CachedModel, inputs: tuple[Input | Array, ...]) -> Tensor:
        try:
            return score(loaded, inputs, self.collate)
        except Exception as error:  # modules raise many types
            shapes = row_shapes(_moved(tuple(rows[:1] for rows in inputs), CPU, self.collate))
            expected = [(list(shape), dtype) for shape, dtype in self.signature or []]
            if shapes is None or shapes == expected or isinstance(error, torch.OutOfMemoryError):
                raise
            rows, trained = (", ".join(f"{dtype} {shape}" for shape, dtype in one) for one in (shapes, expected))
            raise InvalidInput(
                f"the model cannot read {listed([column.name for column in self.columns.inputs])}, whose rows are "
                f"{rows}; expected {trained or 'shapes and types'}, as in the training. {type(error).__name__}: {error}"
            ) from error

    def _inputs(self, batch: tuple[pa.Array, ...] | pa.Array) -> tuple[Input | Array, ...] | None:
        arrays = batch if isinstance(batch, tuple) else (batch,)
        return tuple(map(self._input, arrays, self.columns.inputs)) if len(arrays[0]) else None

    def _input(self, array: pa.Array, column: InputColumn) -> Input | Array:
        floating = self.columns.floating
        if column.ragged is None:
            return decode(array, column, floating=floating, finite=False)
        values, bounds = decode_ragged(array, column, floating=floating, finite=False)
        padding = column.padding if column.ragged == "padded" else None
        return promote_ints(Ragged(_copied(values, pinned=False), torch.from_numpy(bounds), padding))


def _copied(rows: Array, *, pinned: bool) -> Tensor:
    """A copy of rows, for Arrow's memory is read-only, and a model may write to its inputs."""
    copy = torch.empty(rows.shape, dtype=DTYPES[rows.dtype.name], pin_memory=pinned)
    np.copyto(copy.numpy(), rows)
    return copy


def restored(factory: ModelFactory | nn.Module, weights: Weights, precision: str, *, mapped: bool = False) -> nn.Module:
    """Make a module with its weights, in evaluation mode; ``weights`` are empty if the factory carries them.

    The module's parameters are mapped, if the weights are a file and nothing else needs their memory. Tables with files
    have all rows in memory, or are ``mapped``.
    """
    with kept_random_state():
        if isinstance(weights, WeightsFile):
            module = _from_file(factory, weights, mapped=mapped)
        else:
            module = new_module(factory)
    if isinstance(weights, bytes) and weights:
        unpack(weights, module)
    return Objective(lambda: module, nn.MSELoss(), precision=precision).build().eval()


def _from_file(factory: ModelFactory | nn.Module, weights: WeightsFile, *, mapped: bool) -> nn.Module:
    def make(*, parameters: bool) -> tuple[nn.Module, dict[str, Any]]:
        with without_rows() if weights.tables else nullcontext():
            module = new_module(factory, parameters=parameters)
        return module, read_weights(weights) | keep_saved(module, weights.tables, mapped=mapped)

    module, state = make(parameters=False)
    if not assign(module, state):
        module, state = make(parameters=True)
        adopt(module, state)
    return module


def score(loaded: CachedModel, inputs: tuple[Input | Array, ...], collate: Collate | None = None) -> Tensor:
    """Compute the raw outputs of at least one row, ``[rows, ...]``, on the CPU, batch by batch.

    Arrays are copied batch by batch, and so stay as they are.

    If a GPU's memory does not suffice for a batch, the batch size is halved once, with a warning.

    Raises:
        InvalidInput: the model returned no tensor, or not one row of output per row of input.
    """
    rows = len(inputs[0])

    def moved(piece: slice) -> tuple[Input, ...]:
        return _moved(tuple(column[piece] for column in inputs), loaded.device, collate)

    if loaded.rows is None:
        loaded.rows = batch_rows(
            lambda piece: _forward(loaded, moved(piece)), inputs, lambda: loaded.at_once, loaded.budget
        )
    try:
        return _joined(moved, rows, loaded)
    except torch.OutOfMemoryError as error:
        if loaded.halved or loaded.rows == 1:
            raise
        loaded.halved, loaded.rows = True, loaded.rows // 2
        reason = str(error).partition(". ")[0]
        warnings.warn(f"{reason}. The model now scores {loaded.rows} rows at a time.", stacklevel=2)
    if loaded.device.type == "cuda":
        torch.cuda.empty_cache()
    return _joined(moved, rows, loaded)


@torch.inference_mode()  # of this thread; on GPUs it is the prefetch thread
def _moved(inputs: tuple[Input | Array, ...], device: torch.device, collate: Collate | None) -> tuple[Input, ...]:
    pinned = collate is None and device.type == "cuda"
    copies = [rows if isinstance(rows, (Tensor, Ragged)) else _copied(rows, pinned=pinned) for rows in inputs]
    if collate is not None:
        copies = list(collated(collate, tuple(promote_ints(rows) for rows in copies)))
    return tuple(move_to(rows, device) for rows in copies)


@torch.inference_mode()
def _joined(moved: Callable[[slice], tuple[Input, ...]], rows: int, loaded: CachedModel) -> Tensor:
    assert loaded.rows is not None
    on_gpu, scores = loaded.device.type == "cuda", None
    arrived: Iterator[tuple[slice, tuple[Input, ...]]] = ((one, moved(one)) for one in batches(rows, loaded.rows))
    if on_gpu and rows > loaded.rows:  # the next rows are copied while these are computed
        arrived = prefetch_to(loaded.device, arrived, lambda one: device_tensors(one[1]), depth=1)
    for piece, inputs in arrived:
        output, expected = _forward(loaded, inputs), piece.stop - piece.start
        if not isinstance(output, Tensor):
            raise InvalidInput(f"the model returned {type(output).__name__}; expected one tensor.")
        if output.dim() == 0 or len(output) != expected:
            shape = f"the shape {list(output.shape)} for {expected} rows; expected [{expected}, ...]"
            raise InvalidInput(f"the model returned {shape}.")
        if expected == rows:
            return output.cpu()
        if scores is None:
            scores = torch.empty((rows, *output.shape[1:]), dtype=output.dtype, pin_memory=on_gpu)
        scores[piece].copy_(output, non_blocking=True)
    if on_gpu:
        torch.cuda.current_stream(loaded.device).synchronize()  # the copies are asynchronous
    assert scores is not None
    return scores


def _forward(loaded: CachedModel, inputs: tuple[Input, ...]) -> Any:
    with loaded.autocast:
        return loaded.module(*arguments(inputs))
