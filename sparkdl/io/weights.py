"""A module's weights, buffers and extra state as safetensors bytes, and slices of tensors; reading unpickles nothing.

Extra state, and complex tensors, are bytes of ``pack_state``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from sparkdl.errors import InvalidInput
from sparkdl.io.serialization import NATIVE, metadata, pack_pieces, pack_state, unpack_state

LARGE = 256 << 20
"""Weights with more bytes travel as a file, if there is a directory for it."""


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

    @staticmethod
    def of(entry: Mapping[str, Any]) -> Slice:
        """The slice of ``entry()``."""
        return Slice(tuple(entry["shape"]), tuple(range(*ends) for ends in entry["ranges"]))

    def entry(self) -> dict[str, Any]:
        """The slice as JSON."""
        return {"shape": list(self.shape), "ranges": [[one.start, one.stop, one.step] for one in self.ranges]}

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


Slices = Mapping[str | int, Slice]
"""A worker's slices by name and by index of a parameter; empty if it has whole tensors."""
_Key = TypeVar("_Key")


def owners(sizes: Mapping[_Key, int], workers: int) -> dict[_Key, int]:
    """The rank to which each whole tensor is dealt: by its bytes, the largest first, to the worker with the fewest."""
    loads, owner = [0] * workers, {}
    for key, size in sorted(sizes.items(), key=lambda item: -item[1]):
        owner[key] = min(range(workers), key=loads.__getitem__)
        loads[owner[key]] += size
    return owner


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


def pack_part(
    parameters: Mapping[str, tuple[Slice, Tensor]],
    others: Mapping[str, Tensor],
    aliases: Mapping[str, str],
    tables: Mapping[str, str],
) -> list[memoryview]:
    """A worker's slices of parameters, and on one worker the other entries, for ``sparkdl.io.merged_weights``.

    ``tables`` are what the writer of their rows returned, by the tables' names.
    """
    slices = {name: part.entry() for name, (part, _) in parameters.items()}
    tensors = {name: value for name, (_, value) in parameters.items()}
    state = {"slices": slices, "parameters": tensors, "others": {**others}, "aliases": {**aliases}}
    return pack_pieces(state | {"tables": {**tables}})


def check_weights(module: nn.Module) -> None:
    """Raise InvalidInput if ``pack`` would, or if no module could load its bytes."""
    for name, kind in ((name, type(part)) for name, part in module.named_modules()):
        if kind.get_extra_state != nn.Module.get_extra_state and kind.set_extra_state == nn.Module.set_extra_state:
            where = f"{name or 'the model'} is a {kind.__name__}, which"
            raise InvalidInput(f"{where} has get_extra_state; expected set_extra_state as well, to load a saved model.")
    entries(module)


def fits(size: int, limit: int | None) -> bool:
    """Whether weights have at most nine tenths of the bytes that the driver accepts as results; None is any number."""
    return limit is None or size <= 0.9 * limit  # a result also has the history, and Spark's own bytes


def check_result(module: nn.Module, size: int, limit: int | None, *, tables: bool = False) -> None:
    """Raise InvalidInput unless weights of ``size`` bytes can travel to the driver as a result; ``tables`` are large.

    Args:
        module: of the weights.
        size: of all weights, in bytes.
        limit: bytes that the driver accepts; None is any number.
        tables: whether the module has tables, which more than 256 MiB travel as files alone.
    """
    if tables and size > LARGE:
        raise InvalidInput(
            f"{type(module).__name__} has a Table, and its weights have {size / 1e6:.6g} MB; expected runDir, where "
            f"each worker writes its rows if there are more than {LARGE >> 20} MiB."
        )
    if limit is not None and not fits(size, limit):
        raise InvalidInput(
            f"the weights of {type(module).__name__} have {size / 1e6:.6g} MB, and the driver accepts results of "
            f"{limit / 1e6:.6g} MB. Set runDir, so that workers write large weights to files, or set a larger "
            "spark.driver.maxResultSize, 0 for no limit."
        )


def read_state(packed: bytes) -> dict[str, Any]:
    """Read the ``state_dict`` from bytes of ``pack``, sorted by name; raises InvalidInput if they are damaged."""
    try:
        return state_of(load(packed), metadata(packed))
    except Exception as error:
        raise InvalidInput(f"the saved weights cannot be read: {error}") from error


def state_of(tensors: dict[str, Any], about: Mapping[str, str]) -> dict[str, Any]:
    """The ``state_dict`` of the tensors and the metadata of ``pack``, sorted by name."""
    for name, first in json.loads(about["aliases"]).items():
        tensors[name] = tensors[first] if first != name else unpack_state(tensors[name].numpy().tobytes())[name]
    return {name: tensors[name] for name in sorted(tensors)}  # safetensors keeps no order


def unpack(packed: bytes, module: nn.Module) -> None:
    """Load bytes of ``pack`` into a module, whose floating-point tensors take the dtypes of the saved ones.

    Raises InvalidInput if the bytes are damaged or of another architecture.
    """
    adopt(module, read_state(packed))


def adopt(module: nn.Module, state: Mapping[str, Any]) -> None:
    """Copy a state into a module as ``unpack`` does."""
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if name in state and tensor.is_floating_point() and state[name].is_floating_point():
            tensor.data = tensor.data.to(state[name].dtype)
    load_into(module, state)


def load_into(module: nn.Module, state: Mapping[str, Any], *, assign: bool = False) -> None:
    """``module.load_state_dict`` that raises InvalidInput if the state is of another architecture."""
    try:
        module.load_state_dict(state, assign=assign)
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
