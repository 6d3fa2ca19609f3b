"""Run state as bytes that contain no code.

The bytes are a safetensors file. Its chunks are views of the tensors' own memory, so writing copies no model. The
metadata has one entry, ``state``: a CRC-32 in hexadecimal, then the nesting as JSON. In the JSON, the file's tensor
numbers stand for tensors, arrays and bytes. The CRC covers the JSON and the dtype, shape and bytes of every tensor.
Reading unpickles nothing and resolves no names, so not even hostile bytes run code.
"""

from __future__ import annotations

import json
import math
import struct
import warnings
import zlib
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparkdl.errors import InvalidInput

NATIVE: dict[torch.dtype, str] = {
    **{getattr(torch, f"float{bits}"): f"F{bits}" for bits in (16, 32, 64)},
    **{getattr(torch, f"int{bits}"): f"I{bits}" for bits in (8, 16, 32, 64)},
    **dict(zip((torch.bfloat16, torch.bool, torch.uint8), ("BF16", "BOOL", "U8"), strict=True)),
}
"""The dtypes that every release of safetensors has, and their names there."""
_BY_NAME = {name: dtype for dtype, name in NATIVE.items()}
# Some releases of safetensors lack these dtypes: they are stored as bytes, with their dtype in the JSON.
_OTHERS: dict[str, torch.dtype] = {
    **{name: getattr(torch, name) for name in ("complex32", "complex64", "complex128", "uint16", "uint32", "uint64")},
    **{f"float8_{kind}": getattr(torch, f"float8_{kind}") for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")},
}
_NUMPY_KINDS = "biufc"  # numbers only: no Python objects, strings or records
_SAFE_INT = 1 << 63  # larger integers are hexadecimal: Python limits the digits of decimal ones


def pack_state(nested: Any) -> bytes:
    """Pack a nested state into bytes, as ``pack_pieces`` does."""
    return b"".join(pack_pieces(nested))


def pack_pieces(nested: Any) -> list[memoryview]:
    """Pack a nested state into chunks whose concatenation ``unpack_state`` reads; equal states give equal bytes.

    A state is dicts with str or int keys, lists and tuples of None, bool, int of any size, float, str, bytes, tensors
    of any dtype but quantized ones, numpy arrays and numpy numbers. Tensors may be on any device; shared ones are
    written once. ``OrderedDict`` and ``defaultdict`` become dicts; a ``Counter`` stays one. Another type raises
    InvalidInput with its path. Chunks of dense CPU tensors share their memory: do not change the tensors before the
    chunks are written.
    """
    writer = _Writer()
    try:
        tree = json.dumps(writer.encode(nested, ""))
    except RecursionError as error:
        raise InvalidInput("the state is nested too deeply, or holds itself; expected plain data.") from error
    header: dict[str, Any] = {"__metadata__": {"state": f"{_checksum(tree, writer.tensors):08x}{tree}"}}
    place, data = 0, []
    # Widest dtypes first, so that every tensor is aligned.
    for number, tensor in sorted(enumerate(writer.tensors), key=lambda entry: -entry[1].element_size()):
        ends = [place, place := place + tensor.nbytes]
        header[str(number)] = {"dtype": NATIVE[tensor.dtype], "shape": [*tensor.shape], "data_offsets": ends}
        data.append(_bytes_of(tensor).numpy())
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pieces: list[Any] = [struct.pack("<Q", len(text)), text, *data]
    return [memoryview(piece) for piece in pieces]


def unpack_state(packed: bytes, *, views: bool = False) -> Any:
    """Unpack bytes from ``pack_state`` to the CPU; raises InvalidInput if they are damaged or in another format.

    With ``views``, tensors share the memory of ``packed``: copy them, and do not write to them.
    """
    try:
        header, begin = _header(packed)
        text = header.pop("__metadata__")["state"]
        tensors = [_view(packed, begin, header[str(number)]) for number in range(len(header))]
        if sum(tensor.nbytes for tensor in tensors) != len(packed) - begin:
            raise ValueError("tensors and bytes differ in length")
        if int(text[:8], 16) != _checksum(text[8:], tensors):
            raise InvalidInput("the saved state is damaged: its checksum is wrong.")
        # Copies, since torch aligns its own memory: alignment may change how matrix products round.
        return _decode(json.loads(text[8:]), tensors if views else [tensor.clone() for tensor in tensors])
    except InvalidInput:
        raise
    except Exception as error:
        raise InvalidInput(f"the saved state cannot be read: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies in the bytes of ``pack_state``."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def stored_state(read_at: Callable[[int, int], bytes]) -> Any:
    """A state whose tensors of ``NATIVE`` dtypes are ``StoredTensor``; ``read_at(count, offset)`` reads its bytes.

    The state holds no bytes, arrays and numbers of numpy.
    """
    (length,) = struct.unpack("<Q", read_at(8, 0))
    header, begin = json.loads(read_at(length, 8)), 8 + length
    tree = json.loads(header.pop("__metadata__")["state"][8:])
    tensors = []
    for entry in (header[str(number)] for number in range(len(header))):
        first, end = entry["data_offsets"]
        tensors.append(StoredTensor(_BY_NAME[entry["dtype"]], tuple(entry["shape"]), begin + first, end - first))
    return _decode(tree, tensors)


def metadata(packed: bytes) -> dict[str, str]:
    """The metadata of a safetensors file; raises what reading damaged bytes raises."""
    return dict(_header(packed)[0]["__metadata__"])


def _header(packed: bytes) -> tuple[dict[str, Any], int]:
    (length,) = struct.unpack("<Q", packed[:8])
    return json.loads(packed[8 : 8 + length]), 8 + length


def _view(packed: bytes, begin: int, entry: Mapping[str, Any]) -> Tensor:
    dtype, (start, end) = _BY_NAME[entry["dtype"]], entry["data_offsets"]
    if start == end:
        return torch.empty(entry["shape"], dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        flat = torch.frombuffer(packed, dtype=dtype, count=(end - start) // dtype.itemsize, offset=begin + start)
    return flat.reshape(entry["shape"])


def _checksum(tree: str, tensors: Iterable[Tensor]) -> int:
    crc = zlib.crc32(tree.encode())
    for tensor in tensors:
        crc = zlib.crc32(f"{tensor.dtype}{list(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(_bytes_of(tensor).numpy(), crc)  # type: ignore[arg-type]
    return crc


def _bytes_of(tensor: Tensor) -> Tensor:
    # Of one value any stride counts as contiguous, but not for view().
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


class _Writer:
    """Replaces the tensors of a nested state by their numbers."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        self._storages: set[int] = set()
        self._alive: list[Tensor] = []  # keeps tensors alive, so that no later one reuses an address

    def encode(self, value: Any, path: str) -> Any:
        """Encode a value as JSON: itself, or a dict whose only key names its type."""
        kind = type(value)
        if value is None or kind in (bool, str) or (kind is int and -_SAFE_INT <= value < _SAFE_INT):
            return value
        if kind is int:
            return {"int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if kind in (list, tuple):
            return {kind.__name__: [self.encode(item, f"{path}[{index}]") for index, item in enumerate(value)]}
        if kind in (dict, OrderedDict, defaultdict, Counter):
            entries = [
                [self.encode(_key(key, path), path), self.encode(item, _below(path, key))]
                for key, item in value.items()
            ]
            return {"counter" if kind is Counter else "dict": entries}
        return self._encode_block(value, path)

    def _encode_block(self, value: Any, path: str) -> Any:
        kind = type(value)
        if kind in (Tensor, nn.Parameter):
            return self._encode_tensor(value.detach(), path)
        if kind in (bytes, bytearray):
            return {"bytes": self._add(torch.from_numpy(np.frombuffer(value, np.uint8).copy()))}
        if (kind is np.ndarray or isinstance(value, np.generic)) and value.dtype.kind in _NUMPY_KINDS:
            array = np.ascontiguousarray(value)
            raw = torch.from_numpy(array.reshape(-1).view(np.uint8).copy())
            return {"array" if kind is np.ndarray else "number": [self._add(raw), array.dtype.str, list(value.shape)]}
        what = f"{kind.__name__} of {value.dtype}" if isinstance(value, (np.ndarray, np.generic)) else kind.__name__
        raise InvalidInput(
            f"{path or 'the state'} is of type {what}; expected tensors, arrays of numbers, bytes, numbers, strings or "
            "None, in dicts, lists and tuples. Omit it from the state_dict, or put plain data there."
        )

    def _encode_tensor(self, tensor: Tensor, path: str) -> Any:
        native = tensor.dtype in NATIVE
        name = str(tensor.dtype).removeprefix("torch.")
        if tensor.layout != torch.strided or tensor.device.type == "meta" or not (native or name in _OTHERS):
            raise InvalidInput(
                f"{path or 'the state'} is a {tensor.layout} tensor of {name} on {tensor.device}; expected a dense "
                "tensor with values."
            )
        where = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride())
        same = (*where, tensor.dtype, tensor.is_conj(), tensor.is_neg())
        if same not in self._numbers or not tensor.numel():
            self._alive.append(tensor)
            dense = tensor.cpu().resolve_conj().resolve_neg().contiguous()
            self._numbers[same] = self._add(dense if native else _bytes_of(dense))
        number = self._numbers[same]
        return {"tensor": [number] if native else [number, name, list(tensor.shape)]}

    def _add(self, tensor: Tensor) -> int:
        if tensor.untyped_storage().data_ptr() in self._storages:
            tensor = tensor.clone()
        self._storages.add(tensor.untyped_storage().data_ptr())
        self.tensors.append(tensor)
        return len(self.tensors) - 1


def _key(key: Any, path: str) -> str | int:
    if type(key) in (str, int):
        return key  # type: ignore[no-any-return]
    raise InvalidInput(f"{path or 'the state'} has the key {key!r} of type {type(key).__name__}; expected str or int.")


def _below(path: str, key: str | int) -> str:
    if isinstance(key, str):
        return f"{path}.{key}" if path else key
    return f"{path}[{key if -_SAFE_INT <= key < _SAFE_INT else hex(key)}]"


def _decode(tree: Any, tensors: Sequence[Any]) -> Any:
    if isinstance(tree, list):
        raise ValueError("a bare list")
    if not isinstance(tree, dict):
        return tree
    ((kind, value),) = tree.items()
    if kind in ("list", "tuple"):
        values = [_decode(item, tensors) for item in value]
        return values if kind == "list" else tuple(values)
    if kind in ("dict", "counter"):
        entries = {_key(_decode(key, tensors), "the nesting"): _decode(item, tensors) for key, item in value}
        return entries if kind == "dict" else Counter(entries)
    if kind == "int":
        return int(value, 16)
    if kind == "float":
        return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[value]
    return _decode_block(kind, value, tensors)


def _decode_block(kind: str, value: Any, tensors: Sequence[Any]) -> Any:
    if kind == "bytes":
        return tensors[value].numpy().tobytes()
    if kind == "tensor":
        number, *dtype_and_shape = value
        if not dtype_and_shape:
            return tensors[number]
        name, shape = dtype_and_shape
        return tensors[number].view(_OTHERS[name]).reshape(shape)
    if kind not in ("array", "number"):
        raise ValueError(f"the kind {kind!r}")
    number, name, shape = value
    dtype = np.dtype(name)
    if dtype.kind not in _NUMPY_KINDS:
        raise ValueError(f"an array of {dtype}")
    array = np.frombuffer(tensors[number].numpy().tobytes(), dtype).reshape(shape).copy()
    return array if kind == "array" else array[()]
