"""All members of an ensemble as one module, for one pass over the data.

For members of one architecture, the module stacks their parameters and buffers, and ``torch.func.vmap`` runs each
operation once for all members. This saves calls, which dominate small batches of small models. Batched convolutions
are several times slower than sequential ones, so members with convolutions run one by one.

Members also run one by one if vmap's results differ from theirs. A probe tests that once, on two rows with the shape
and dtype of the data, so that the choice does not depend on the data and is the same in every Python worker. If vmap
fails on a later batch, that batch runs one by one. The results of both ways are equal up to rounding.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from sparkdl.ensembles.combine.rules import Combining, stack_outputs
from sparkdl.errors import InvalidInput
from sparkdl.io.weights_file import Weights
from sparkdl.serving.format.param_values import same
from sparkdl.serving.scorer import restored
from sparkdl.training.objective.module_factory import ModelFactory

_FLAT = 2  # dimensions of the weights of linear layers, embeddings and norms
_PROBED = 2  # rows
_PARTS = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True)
class VmapFactory:
    """Factory of the module of all members, for ``Scorer``; it has each member's factory and safetensors bytes."""

    members: tuple[tuple[ModelFactory | nn.Module, Weights], ...]
    combining: Combining
    precision: str

    def __call__(self) -> VmapEnsemble:
        """The module, in evaluation mode."""
        members = [restored(factory, weights, self.precision) for factory, weights in self.members]
        return VmapEnsemble(members, self.combining)

    def equals(self, factory: VmapFactory) -> bool:
        """Whether another factory has identical members and the same combination rule."""
        # By identity: a factory may define any equality.
        ours, theirs = ([*map(id, chain.from_iterable(maker.members))] for maker in (self, factory))
        return (self.combining, self.precision, ours) == (factory.combining, factory.precision, theirs)


class VmapEnsemble(nn.Module):
    """Runs all members, modules in evaluation mode, in one pass."""

    def __init__(self, members: Sequence[nn.Module], combining: Combining) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.combining = combining
        self._state: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None
        self._tried = False
        flat = all(parameter.dim() <= _FLAT for parameter in members[0].parameters())
        if len(members) > 1 and flat and all(same_architecture(members[0], member) for member in members[1:]):
            self._state = stack_module_state(list(members))
            self._share()

    @property
    def stacked(self) -> bool:
        """Whether the members are stacked; the first batch may clear it."""
        return self._state is not None

    @property
    def models_at_once(self) -> int:
        """Number of models that process a batch at the same time."""
        return len(self.members) if self.stacked else 1

    def forward(self, *inputs: Tensor) -> Tensor:
        """The combined outputs of the members; ``Combining`` gives the shapes."""
        return self.combining(self.outputs(*inputs))

    def outputs(self, *inputs: Tensor) -> Tensor:
        """The outputs of all members, ``[M, B, ...]``."""
        if self._state is not None and not self._tried:
            self._tried = True
            if not self._vmap_agrees([_probe(tensor) for tensor in inputs]):
                self._state = None
        if self._state is None:
            return self._one_by_one(*inputs)
        try:
            return self._together(*inputs)
        except Exception:  # the batch takes a path that the probe did not, or a member fails
            return self._one_by_one(*inputs)

    def _together(self, *inputs: Tensor) -> Tensor:
        assert self._state is not None
        first = self.members[0]

        def call(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Any:
            return functional_call(first, (parameters, buffers), inputs)

        return _tensor(torch.func.vmap(call)(*self._state))

    def _one_by_one(self, *inputs: Tensor) -> Tensor:
        # A member may write to its inputs: each gets its own copy of the batch.
        return stack_outputs([_tensor(member(*_copies(inputs))) for member in self.members], self.combining.rule)

    def _vmap_agrees(self, inputs: Sequence[Tensor]) -> bool:
        copies = _copies(inputs)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                expected = self._one_by_one(*inputs)
                actual = self._together(*copies)
        except Exception:  # vmap fails in many ways, and a member may reject these values
            return False
        if any("performance drop" in str(warning.message) for warning in caught):
            return False  # vmap runs this operation one by one itself, and would warn in every batch
        if not all(map(torch.equal, copies, inputs)):
            return False  # the members write to their inputs, and a batch that vmap rejects must stay unchanged
        return actual.shape == expected.shape and torch.allclose(
            actual.to(expected.dtype), expected, rtol=1e-3, atol=1e-5, equal_nan=True
        )

    def _share(self) -> None:
        """Make the members' tensors views of the stacked ones, so that memory holds them once."""
        assert self._state is not None
        for index, member in enumerate(self.members):
            for tensors, stacked in zip((member.named_parameters(), member.named_buffers()), self._state, strict=True):
                for name, tensor in tensors:
                    tensor.data = stacked[name].data[index]


def same_architecture(left: nn.Module, right: nn.Module) -> bool:
    """Whether two modules differ only in the values of their parameters and buffers."""
    ours, theirs = (dict(module.named_modules(remove_duplicate=False)) for module in (left, right))
    return ours.keys() == theirs.keys() and all(_alike(ours[name], theirs[name]) for name in ours)


def _alike(left: nn.Module, right: nn.Module) -> bool:
    try:
        return type(left) is type(right) and same(_attributes(left), _attributes(right))
    except (TypeError, ValueError, RuntimeError):  # an attribute without a plain equality, such as an array
        return False


def _attributes(module: nn.Module) -> dict[str, Any]:
    tensors = {**module._parameters, **module._buffers}
    forms = {name: None if one is None else (tuple(one.shape), str(one.dtype)) for name, one in tensors.items()}
    return {name: value for name, value in vars(module).items() if name not in _PARTS} | {"tensors": forms}


def _probe(batch: Tensor) -> Tensor:
    shape = (_PROBED, *batch.shape[1:])
    if batch.dtype == torch.bool:
        return torch.ones(shape, dtype=torch.bool, device=batch.device)
    numbers = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    # Integers may be indices or row offsets: the first offset is 0.
    values = (numbers + 1).sin() if batch.is_floating_point() or batch.is_complex() else numbers % 2
    return values.to(batch.device, batch.dtype)


def _copies(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in inputs]


def _tensor(output: Any) -> Tensor:
    if not isinstance(output, Tensor):
        raise InvalidInput(f"a member's model returned {type(output).__name__}; expected one tensor.")
    return output
