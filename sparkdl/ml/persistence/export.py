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
from sparkdl.ml.persistence.export_check import Archive

Signature = list[tuple[list[int], str]]
"""The shape of a row and the dtype's name of each input, such as ``([28, 28], "float32")``."""


def export(module: nn.Module, inputs: Sequence[Tensor]) -> bytes:
    """Export a module in evaluation mode as a torch.export archive for batches of any size.

    ``torch.export.load`` reads it as well. The archive does not hold the inputs.

    Args:
        module: takes tensors ``[B, ...]``; left unchanged.
        inputs: an example of each, ``[B, ...]`` with at least 2 rows.

    Raises:
        InvalidInput: torch cannot export the module for batches of any size, or the program's outputs differ from the
            module's.
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
            same = _same(module, program.module(), inputs)
            program.example_inputs = None
            torch.export.save(program, written)
    except Exception as error:  # torch raises many types, and those of the module's code
        raise InvalidInput(f"{type(module).__name__} cannot be exported: {_first_line(error)}") from error
    finally:
        module.train(was_training)
    if not same:
        raise InvalidInput(
            f"{type(module).__name__} cannot be exported: the program's outputs differ from the module's; expected a "
            "forward() that depends only on its inputs and the weights."
        )
    return written.getvalue()


def load(archive: bytes, *, trust: bool = False) -> Exported:
    """Load an archive of ``export`` or ``torch.export.save`` as a module.

    Args:
        archive: the bytes of the ``.pt2`` file.
        trust: load it even if loading can run code inside it.

    Raises:
        InvalidInput: the archive is damaged, or without ``trust`` it could run code.
    """
    checked = Archive.read(archive)
    if not trust:
        found = checked.unsafe_entries()
        if found:
            raise InvalidInput(
                f"the program can run code when it is loaded: {'; '.join(found[:5])}"
                f"{f' and {len(found) - 5} more' if len(found) > 5 else ''}. Load it with trust=True if you know who "
                "made it."
            )
    try:
        program = torch.export.load(io.BytesIO(archive if trust else checked.sanitized()))
        return Exported(program.module(), archive, trust=trust)
    except Exception as error:  # torch raises many types for unreadable archives
        raise InvalidInput(
            f"the program cannot be loaded with torch {torch.__version__}: {_first_line(error)}"
        ) from error


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

    Args:
        program: the result of ``ExportedProgram.module()``.
        archive: the program's archive; copies and pickles hold it and the weights.
        trust: whether the archive was loaded with ``trust``.
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
        program = torch.export.load(
            io.BytesIO(self._archive if self._trust else Archive.read(self._archive).sanitized())
        )
        state = self.program.state_dict()
        for name, old in program.state_dict.items():
            new = state[name].detach().cpu().clone()
            if new.dtype != old.dtype:
                raise InvalidInput(
                    f"the program's {name} became {new.dtype}; expected its original dtype, {old.dtype}."
                )
            program.state_dict[name] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
        written = io.BytesIO()
        torch.export.save(program, written)
        return written.getvalue()

    def __reduce__(self) -> tuple[Any, ...]:
        return _revived, (self._archive, self._trust, self.state_dict(), self.training)


def _revived(archive: bytes, trust: bool, state: dict[str, Tensor], training: bool) -> Exported:
    found = load(archive, trust=trust)
    for name, parameter in found.named_parameters():
        parameter.data = parameter.data.to(state[name].dtype)
    found.load_state_dict(state)
    return found.train(training)


@dataclass(frozen=True)
class Program:
    """A model factory that carries the weights, as the archive of a program.

    Attributes:
        archive: the bytes of ``export``.
        trust: whether loading it may run code inside it.
    """

    archive: bytes = field(repr=False)
    trust: bool = False

    def __call__(self) -> Exported:
        """Load the program as a module.

        Raises:
            InvalidInput: as ``load``.
        """
        return load(self.archive, trust=self.trust)

    def __repr__(self) -> str:
        return f"Program({hashlib.sha256(self.archive).hexdigest()})"


def _same(one: nn.Module, other: nn.Module, inputs: Sequence[Tensor]) -> bool:
    """Whether two modules have the same outputs."""
    found = []
    for module in (one, other):
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            found.append(torch.utils._pytree.tree_leaves(module(*inputs)))
    return len(found[0]) == len(found[1]) and all(
        torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)
        for a, b in zip(*found, strict=True)
        if isinstance(a, Tensor) and isinstance(b, Tensor)
    )


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def as_program(factory: Any, weights: bytes, signature: Signature | None, module: Callable[[], nn.Module]) -> bytes:
    """Export a model as a torch.export archive.

    Args:
        factory: makes the module.
        weights: safetensors; empty if the factory is a ``Program``, which carries them.
        signature: shape and dtype of a row of each input.
        module: makes the trained module.

    Raises:
        InvalidInput: the signature is unknown, or torch cannot export the module.
    """
    if isinstance(factory, Program) and not weights:
        return factory.archive
    if signature is None:
        raise InvalidInput(
            "the model cannot be exported: the shapes and types of its inputs are not known. Expected a model that "
            "was trained, or TorchModel(signature=...)."
        )
    return export(module(), examples(signature))
