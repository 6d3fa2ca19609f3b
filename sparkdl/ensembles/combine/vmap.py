"""All members of an ensemble as one module: a batch goes through every one of them in one pass over the data.

Members of the same architecture have their parameters and buffers stacked, and ``torch.func.vmap`` puts the batch
through all of them with one call for each operation. That saves calls, which is what small batches of small models
are made of. Convolutions of several weights at once take several times as long as one after the other: members that
have any are asked one by one.

So are those of which vmap does not give what they give. That is tried once, with two rows that have the shape and the
dtype of the data, and values of their own: sines of 1, 2, 3 ... where numbers are floating-point, 0 and 1 in turn where
they are integers, True where they are booleans. So which way is taken does not depend on the data, and is the same in
every worker and every time; a batch that vmap refuses nevertheless goes one by one by itself. The results of both ways
are the same but for rounding.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from sparkdl.ensembles.combine.rules import Combining, alike
from sparkdl.errors import InvalidInput
from sparkdl.ml.inference.scorer import restored
from sparkdl.ml.persistence.param_values import same
from sparkdl.training.objective import ModelFactory

_FLAT = 2  # dimensions of the weights of linear layers, embeddings and norms
_PROBED = 2  # rows
_PARTS = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True)
class Assembly:
    """Makes the module of all members; a factory as ``Scorer`` takes one, with the weights in it.

    Attributes:
        members: of each one the factory, and its weights as safetensors bytes.
        combining: what becomes of their outputs.
        precision: of all of them.
    """

    members: tuple[tuple[ModelFactory | nn.Module, bytes], ...]
    combining: Combining
    precision: str

    def __call__(self) -> Stacked:
        """The module, in evaluation mode."""
        members = [restored(factory, weights, self.precision) for factory, weights in self.members]
        return Stacked(members, self.combining)

    def holds_what(self, other: Assembly) -> bool:
        """Whether another has the very same members, combined in the same way."""
        if (self.combining, self.precision) != (other.combining, other.precision):
            return False
        ours, theirs = self.members, other.members
        # Not by their equality: that of a factory may be anything.
        return len(ours) == len(theirs) and all(
            one is another
            for pair, like in zip(ours, theirs, strict=True)
            for one, another in zip(pair, like, strict=True)
        )


class Stacked(nn.Module):
    """Members in one pass.

    Args:
        members: in evaluation mode.
        combining: what becomes of their outputs.
    """

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
        """Whether the members are stacked, as far as is known by now."""
        return self._state is not None

    @property
    def models_at_once(self) -> int:
        """How many models a batch goes through at the same time."""
        return len(self.members) if self.stacked else 1

    def forward(self, *inputs: Tensor) -> Tensor:
        """The members' outputs as one; see ``Combining``."""
        return self.combining(self.outputs(*inputs))

    def outputs(self, *inputs: Tensor) -> Tensor:
        """The outputs of all members, ``[M, B, ...]``."""
        if self._state is not None and not self._tried:
            self._tried = True
            if not self._vmap_takes_it([_probe(each) for each in inputs]):
                self._state = None
        if self._state is None:
            return self._one_by_one(*inputs)
        try:
            return self._together(*inputs)
        except Exception:  # values that take a way through the model which the probe did not; or a member's own error
            return self._one_by_one(*inputs)

    def _together(self, *inputs: Tensor) -> Tensor:
        assert self._state is not None
        first = self.members[0]

        def call(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Any:
            return functional_call(first, (parameters, buffers), inputs)

        return _tensor(torch.func.vmap(call)(*self._state))

    def _one_by_one(self, *inputs: Tensor) -> Tensor:
        # A member may write to what it is given, and the next one is to have what came from the data.
        return alike([_tensor(member(*_copies(inputs))) for member in self.members], self.combining.rule)

    def _vmap_takes_it(self, inputs: Sequence[Tensor]) -> bool:
        """Whether vmap gives what the members give."""
        given = _copies(inputs)
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                expected = self._one_by_one(*inputs)
                found = self._together(*given)
        except Exception:  # vmap refuses in many ways, and a member may not take these values
            return False
        if any("performance drop" in str(each.message) for each in said):
            return False  # an operation that vmap takes one by one itself, and warns of in every batch
        if not all(map(torch.equal, given, inputs)):
            return False  # they write to what they are given, and what vmap refuses is to be given to others unchanged
        return found.shape == expected.shape and torch.allclose(
            found.to(expected.dtype), expected, rtol=1e-3, atol=1e-5, equal_nan=True
        )

    def _share(self) -> None:
        """Have the members' own tensors be parts of the stacked ones, so that they are there once."""
        assert self._state is not None
        for index, member in enumerate(self.members):
            for tensors, stacked in zip((member.named_parameters(), member.named_buffers()), self._state, strict=True):
                for name, tensor in tensors:
                    tensor.data = stacked[name].data[index]


def same_architecture(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules differ in the values of their parameters and buffers alone."""
    if type(one) is not type(other) or one._modules.keys() != other._modules.keys():
        return False
    try:
        if not same(_attributes(one), _attributes(other)):
            return False
    except (TypeError, ValueError, RuntimeError):  # an attribute that cannot be compared, such as an array
        return False
    tensors = ((one._parameters, other._parameters), (one._buffers, other._buffers))
    if any(_forms(ours) != _forms(theirs) for ours, theirs in tensors):
        return False
    pairs = zip(one._modules.values(), other._modules.values(), strict=True)
    return all(
        a is b if a is None or b is None else same_architecture(a, b)  # a part may be None
        for a, b in pairs
    )


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in _PARTS}


def _forms(tensors: Any) -> dict[str, Any]:
    return {name: None if each is None else (each.shape, each.dtype) for name, each in tensors.items()}


def _probe(given: Tensor) -> Tensor:
    """Two rows like those of an input, with values that do not depend on it."""
    shape = (_PROBED, *given.shape[1:])
    if given.dtype == torch.bool:
        return torch.ones(shape, dtype=torch.bool, device=given.device)
    numbers = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    # Integers may be indices, or where rows begin: the first such is 0.
    values = (numbers + 1).sin() if given.is_floating_point() or given.is_complex() else numbers % 2
    return values.to(given.device, given.dtype)


def _copies(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [each.clone() for each in inputs]


def _tensor(output: Any) -> Tensor:
    if not isinstance(output, Tensor):
        raise InvalidInput(f"a member's model returned {type(output).__name__}; expected one tensor.")
    return output
