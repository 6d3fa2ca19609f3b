"""Models as torch.export programs: their computation and weights, without their source code."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ShapesCollection

from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack, unpack
from sparkdl.serving.format.export_check import Archive

Signature = list[tuple[list[int], str]]
"""The shape of a row and the dtype's name of each input, such as ``([28, 28], "float32")``."""

_BATCHES = (1, 2, 3, 33)  # the rows of batches on which exports are compared; torch traces with more than one row


def export(module: nn.Module, inputs: Sequence[Tensor]) -> bytes:
    """Export a module in evaluation mode as a torch.export archive for batches of any size.

    ``torch.export.load`` reads it as well. The archive does not hold the inputs.

    ``inputs`` has an example of each of the module's inputs, ``[B, ...]`` with at least 2 rows.

    Raises:
        InvalidInput: torch cannot export the module for batches of any size, or the program's outputs differ from the
            module's on 1, 2, 3 or 33 rows.
    """
    if not inputs or any(tensor.dim() == 0 or len(tensor) < 2 for tensor in inputs):
        raise InvalidInput("the example inputs of an export are expected to be tensors of at least 2 rows.")
    if isinstance(module, Exported):
        return module.exported()
    was_training, batch = module.training, Dim("batch")
    shapes: Any = ShapesCollection()  # type: ignore[no-untyped-call]
    for tensor in inputs:
        shapes[tensor] = {0: batch}
    written = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of torch's own modules, such as nn.LSTM
            program = torch.export.export(module.eval(), tuple(inputs), dynamic_shapes=shapes)
            compare(module, program.module(), inputs)
            program.example_inputs = None
            torch.export.save(program, written)
    except Exception as error:  # torch raises many types, and those of the module's code
        raise InvalidInput(f"{type(module).__name__} cannot be exported: {first_line(error)}") from error
    finally:
        module.train(was_training)
    return written.getvalue()


def compare(module: Callable[..., Any], exported: Callable[..., Any], inputs: Sequence[Tensor]) -> None:
    """Compare an export with its module on batches of several sizes; raises ``InvalidInput`` if the outputs differ."""
    for rows in _BATCHES:
        batch = [tensor[torch.arange(rows) % len(tensor)] for tensor in inputs]
        try:
            actual, expected = _outputs(exported, batch), _outputs(module, batch)
            torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-5, equal_nan=True)
        except AssertionError as error:
            raise InvalidInput(
                f"on {rows} rows its outputs differ from the module's: {str(error).partition(chr(10))[0]} Expected a "
                "forward() that depends only on its inputs and the weights, and treats batches of all sizes alike."
            ) from error


def load(archive: bytes, *, trust: bool = False) -> Exported:
    """Load an archive of ``export`` or ``torch.export.save`` as a module.

    ``trust`` loads it even if loading can run code inside it.

    Raises:
        InvalidInput: the archive is damaged, or without ``trust`` it could run code.
    """
    checked = Archive.read(archive)
    if not trust and (unsafe := checked.unsafe_entries()):
        more = f" and {len(unsafe) - 5} more" if len(unsafe) > 5 else ""
        raise InvalidInput(
            f"the program can run code when it is loaded: {'; '.join(unsafe[:5])}{more}. Load it with trust=True if "
            "you know who made it."
        )
    try:
        program = torch.export.load(io.BytesIO(archive if trust else checked.sanitized()))
        return Exported(program.module(), archive, trust=trust)
    except Exception as error:  # torch raises many types for unreadable archives
        reason = f"{torch.__version__}: {first_line(error)}"
        raise InvalidInput(f"the program cannot be loaded with torch {reason}") from error


def examples(signature: Signature, rows: int = 2) -> tuple[Tensor, ...]:
    """Make example inputs ``[rows, ...]`` of a signature: numbers from 0 to 1; zeros for integer types."""
    generator = torch.Generator().manual_seed(0)

    def example(shape: list[int], dtype: torch.dtype) -> Tensor:
        if dtype.is_floating_point:
            return torch.rand(rows, *shape, generator=generator, dtype=torch.float64).to(dtype)
        return torch.zeros(rows, *shape, dtype=dtype)

    return tuple(example(shape, getattr(torch, name)) for shape, name in signature)


class Exported(nn.Module):
    """A loaded program as a module; it computes in evaluation mode, whatever its mode.

    Copies and pickles hold the program's archive and the weights.
    """

    def __init__(self, program: nn.Module, archive: bytes, *, trust: bool) -> None:
        super().__init__()
        self.program = program
        self._archive, self._trust = archive, trust
        self.training = False

    def forward(self, *inputs: Tensor) -> Any:
        """Compute the program's outputs."""
        return self.program(*inputs)

    def train(self, mode: bool = True) -> Exported:
        """Set the mode of this module only: the program's own ``train`` raises."""
        self.training = mode
        return self

    def exported(self) -> bytes:
        """Archive the program with the module's present weights, without tracing it again."""
        archive = self._archive if self._trust else Archive.read(self._archive).sanitized()
        program = torch.export.load(io.BytesIO(archive))
        state = self.program.state_dict()
        for key, old in program.state_dict.items():
            new = state[key].detach().cpu().clone()
            if new.dtype != old.dtype:
                raise InvalidInput(f"the program's {key} became {new.dtype}; expected its original dtype, {old.dtype}.")
            program.state_dict[key] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
        written = io.BytesIO()
        torch.export.save(program, written)
        return written.getvalue()

    def __reduce__(self) -> tuple[Any, ...]:
        return _revived, (self._archive, self._trust, pack(self), self.training)


def _revived(archive: bytes, trust: bool, weights: bytes, training: bool) -> Exported:
    module = load(archive, trust=trust)
    unpack(weights, module)
    return module.train(training)


@dataclass(frozen=True)
class Program:
    """A model factory that carries the weights, as the archive of a program; ``trust`` as in ``load``."""

    archive: bytes = field(repr=False)
    trust: bool = False

    def __call__(self) -> Exported:
        """Load the program as a module; raises as ``load`` does."""
        return load(self.archive, trust=self.trust)

    def __repr__(self) -> str:
        return f"Program({hashlib.sha256(self.archive).hexdigest()})"


def _outputs(module: Callable[..., Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        return [leaf for leaf in torch.utils._pytree.tree_leaves(module(*inputs)) if isinstance(leaf, Tensor)]


def first_line(error: BaseException) -> str:
    """The class and the first line of an error; the message of ``InvalidInput``."""
    if isinstance(error, InvalidInput):
        return error.message
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
