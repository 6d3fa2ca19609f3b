"""A module's weights, buffers and extra state as safetensors bytes, and slices of tensors; reading unpickles nothing.

Extra state, and complex tensors, are bytes of ``pack_state``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from sparkdl.errors import InvalidInput
from sparkdl.io.serialization import NATIVE, metadata, pack_state, unpack_state


@dataclass(frozen=True)
class Slice:
    """A worker's values of a whole tensor: those at all combinations of ``ranges``.

    Attributes:
        shape: of the whole tensor.
        ranges: indices along each dimension; all but the first have a step of 1.
    """

    shape: tuple[int, ...]
    ranges: tuple[range, ...]

    @staticmethod
    def whole(shape: Sequence[int]) -> Slice:
        """All values of a tensor of this shape."""
        return Slice(tuple(shape), tuple(range(size) for size in shape))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of the tensor that holds the slice's values."""
        return tuple(map(len, self.ranges))

    @property
    def index(self) -> tuple[slice, ...]:
        """The index of the slice's values in the whole tensor."""
        return tuple(slice(part.start, part.stop, part.step) for part in self.ranges)

    def within(self, outer: Slice) -> Slice:
        """This slice of the tensor that holds the values of ``outer``, as a slice of ``outer``'s whole tensor."""
        if self.shape != outer.sizes:
            raise InvalidInput(f"a slice of {list(self.shape)} cannot lie in one of {list(outer.sizes)}.")
        ranges = zip(outer.ranges, self.ranges, strict=True)
        return Slice(outer.shape, tuple(numbers[part.start : part.stop : part.step] for numbers, part in ranges))

    def overlap(self, saved: Slice) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
        """The values that are in both slices: their index in this slice's tensor, and in ``saved``'s; None if none is.

        Both are slices of the same whole tensor.
        """
        common = [_common(first, second) for first, second in zip(self.ranges, saved.ranges, strict=True)]
        if not all(common):
            return None
        mine = zip(common, self.ranges, strict=True)
        theirs = zip(common, saved.ranges, strict=True)
        return tuple(_places(*pair) for pair in mine), tuple(_places(*pair) for pair in theirs)


def _common(first: range, second: range) -> range:
    """The numbers in both ranges, of steps above 0."""
    step, start = math.lcm(first.step, second.step), max(first.start, second.start)
    start += -(start - first.start) % first.step
    candidates = range(start, start + step, first.step)
    start = next((number for number in candidates if (number - second.start) % second.step == 0), first.stop)
    return range(start, min(first.stop, second.stop), step)


def _places(part: range, numbers: range) -> slice:
    """The places in ``numbers`` of the numbers of ``part``, which are in it."""
    first, step = numbers.index(part[0]), part.step // numbers.step
    return slice(first, first + len(part) * step, step)


def pack(module: nn.Module) -> bytes:
    """Pack a module's ``state_dict`` as safetensors, tied tensors once; raises InvalidInput as ``pack_state`` does."""
    tensors, aliases = entries(module)
    copies = {name: tensor.cpu().contiguous().clone() for name, tensor in tensors.items()}
    return save(copies, {"aliases": json.dumps(aliases)})  # one entry, since safetensors does not sort several


def check_weights(module: nn.Module, limit: int | None = None) -> None:
    """Raise InvalidInput if ``pack`` would, if no module could load its bytes, or if they exceed the driver's limit."""
    for name, kind in ((name, type(part)) for name, part in module.named_modules()):
        if kind.get_extra_state != nn.Module.get_extra_state and kind.set_extra_state == nn.Module.set_extra_state:
            where = f"{name or 'the model'} is a {kind.__name__}, which"
            raise InvalidInput(f"{where} has get_extra_state; expected set_extra_state as well, to load a saved model.")
    size = sum(tensor.nbytes for tensor in entries(module)[0].values())
    if limit is not None and size > 0.99 * limit:  # the result also has the history, and Spark's own bytes
        raise InvalidInput(
            f"the weights of {type(module).__name__} have {size / 1e6:.6g} MB, and the driver accepts results of "
            f"{limit / 1e6:.6g} MB; expected a larger spark.driver.maxResultSize, or 0 for no limit."
        )


def read_state(packed: bytes) -> dict[str, Any]:
    """Read the ``state_dict`` from bytes of ``pack``, sorted by name; raises InvalidInput if they are damaged."""
    try:
        state: dict[str, Any] = load(packed)
        for name, first in json.loads(metadata(packed)["aliases"]).items():
            state[name] = state[first] if first != name else unpack_state(state[name].numpy().tobytes())[name]
        return {name: state[name] for name in sorted(state)}  # safetensors keeps no order
    except Exception as error:
        raise InvalidInput(f"the saved weights cannot be read: {error}") from error


def unpack(packed: bytes, module: nn.Module) -> None:
    """Load bytes of ``pack`` into a module, whose floating-point tensors take the dtypes of the saved ones.

    Raises InvalidInput if the bytes are damaged or of another architecture.
    """
    state = read_state(packed)
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if name in state and tensor.is_floating_point() and state[name].is_floating_point():
            tensor.data = tensor.data.to(state[name].dtype)
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise InvalidInput(f"the saved weights do not fit {type(module).__name__}: {error}") from error


def entries(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors to write, and the aliases: a tied tensor has another tensor's name, a packed tensor its own."""
    names: dict[tuple[object, ...], str] = {}
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    for name, value in module.state_dict().items():
        if not (isinstance(value, Tensor) and value.dtype in NATIVE and value.layout == torch.strided):
            tensors[name] = torch.frombuffer(bytearray(pack_state({name: value})), dtype=torch.uint8)
            aliases[name] = name
            continue
        first = names.setdefault((value.data_ptr(), value.dtype, value.shape, value.stride()), name)
        if first != name and value.numel():
            aliases[name] = first
        else:
            tensors[name] = value.detach()
    return tensors, aliases
