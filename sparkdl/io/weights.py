"""A module's weights and buffers as safetensors bytes; reading unpickles nothing."""

from __future__ import annotations

import json
import struct

from safetensors.torch import load, save
from torch import Tensor, nn

from sparkdl.errors import InvalidInput


def pack(module: nn.Module) -> bytes:
    """Pack a module's ``state_dict`` as safetensors; tied tensors are written once."""
    names: dict[tuple[object, ...], str] = {}
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    for name, tensor in module.state_dict().items():
        first = names.setdefault((tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()), name)
        if first != name and tensor.numel():
            aliases[name] = first
        else:
            tensors[name] = tensor.detach().cpu().contiguous().clone()
    return save(tensors, {"aliases": json.dumps(aliases)})


def read_state(packed: bytes) -> dict[str, Tensor]:
    """Read the ``state_dict`` from bytes of ``pack``, sorted by name; raises InvalidInput if they are damaged."""
    try:
        state: dict[str, Tensor] = load(packed)
        aliases = json.loads(metadata(packed)["aliases"])
        state |= {name: state[first] for name, first in aliases.items()}
        return {name: state[name] for name in sorted(state)}  # safetensors keeps no order
    except Exception as error:
        raise InvalidInput(f"the saved weights cannot be read: {error}") from error


def unpack(packed: bytes, module: nn.Module) -> None:
    """Load bytes of ``pack`` into a module; raises InvalidInput if they are damaged or of another architecture."""
    state = read_state(packed)
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise InvalidInput(f"the saved weights do not fit {type(module).__name__}: {error}") from error


def metadata(packed: bytes) -> dict[str, str]:
    """The metadata of a safetensors file; raises what reading damaged bytes raises."""
    (length,) = struct.unpack("<Q", packed[:8])
    return dict(json.loads(packed[8 : 8 + length])["__metadata__"])
