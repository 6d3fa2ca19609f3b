"""Weights in one ordinary safetensors file: written from pieces, copied to a host once, and mapped.

A file holds the bytes that ``sparkdl.io.weights.pack`` makes. Nobody overwrites it. Processes map a copy on their own
disk, privately: their pages are shared until a process writes to one, and whatever happens to the original happens to
no process that has mapped the copy. The rows of embedding tables lie in files of their own.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import json
import os
import shutil
import struct
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.errors import InvalidInput
from sparkdl.io.files import Buffer, Folder, exists, local_directories, size
from sparkdl.io.redaction import public
from sparkdl.io.serialization import NATIVE
from sparkdl.io.weights import load_into, read_state, state_of

CHUNK = 64 << 20
"""Bytes that are read at a time."""
_ALIGNMENT = 64
_ROWS = "rows"
# In this order, from the last, the library writes tensors; of one dtype by name.
_ORDER = ("BOOL", "U8", "I8", "I16", "F16", "BF16", "I32", "F32", "F64", "I64")
_DTYPES = {name: dtype for dtype, name in NATIVE.items()}


@dataclass(frozen=True)
class WeightsFile:
    """A safetensors file of weights.

    Attributes:
        uri: a local path or a ``pyarrow.fs`` URI; hidden in ``repr``, since a URI may hold credentials.
        size: bytes.
        sha256: of the bytes, in hexadecimal.
        tables: files of ``rows_file`` of each embedding table, by its module's name: file ``r`` of ``n`` has the rows
            ``r, r + n, r + 2 n, ...``.
    """

    uri: str = field(repr=False)
    size: int
    sha256: str
    tables: Mapping[str, tuple[WeightsFile, ...]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Bytes of this file and of the tables' files."""
        return self.size + sum(file.size for files in self.tables.values() for file in files)

    @staticmethod
    def of(uri: str) -> WeightsFile:
        """A file that exists; reads it once to hash it. Raises OSError as opening it does."""
        with Folder.of(uri).open("") as stream:
            hashed, size = hashlib.sha256(), 0
            while piece := stream.read(CHUNK):
                hashed.update(piece)
                size += len(piece)
        return WeightsFile(uri, size, hashed.hexdigest())

    @staticmethod
    def once(uri: str, total: int, pieces: Iterable[Buffer]) -> WeightsFile:
        """The file if it exists and has ``total`` bytes; else write it from its pieces."""
        return WeightsFile.of(uri) if exists(uri) and size(uri) == total else WeightsFile.write(uri, pieces)

    @staticmethod
    def write(uri: str, pieces: Iterable[Buffer]) -> WeightsFile:
        """Write a file from its pieces, and hash them meanwhile."""
        hashed, size = hashlib.sha256(), 0

        def counted() -> Iterator[Buffer]:
            nonlocal size
            for piece in pieces:
                hashed.update(piece)
                size += len(piece)
                yield piece

        Folder.of(uri).write_stream("", counted())
        return WeightsFile(uri, size, hashed.hexdigest())

    def copied(self) -> Iterator[bytes]:
        """The bytes in pieces; raises InvalidInput as ``opened`` does."""
        with self.opened() as read:
            while piece := read(CHUNK):
                yield piece

    @contextmanager
    def opened(self) -> Iterator[Callable[[int], bytes]]:
        """A function in the block that reads up to so many bytes.

        Raises:
            InvalidInput: the file is gone; or at the end, it has other bytes than it had.
        """
        hashed, size = hashlib.sha256(), 0

        def read(count: int) -> bytes:
            nonlocal size
            piece = bytes(stream.read(count))
            hashed.update(piece)
            size += len(piece)
            return piece

        try:
            stream = Folder.of(self.uri).open("")
        except FileNotFoundError as error:
            raise InvalidInput(
                f"this host has no file {public(self.uri)}: the model's weights are gone, or hosts do not share its "
                "folder. Save a model before you delete the runDir that trained it."
            ) from error
        damage: Exception | None = None
        with stream:
            try:
                yield read
            except (ValueError, struct.error) as error:  # a header that the block could not read
                damage = error
                while read(CHUNK):
                    continue
        if (size, hashed.hexdigest()) != (self.size, self.sha256):
            raise InvalidInput(
                f"the weights in {public(self.uri)} have changed since the model was made; expected {self.size} bytes "
                f"with the SHA-256 {self.sha256}. Save a model to have a copy of its weights."
            ) from damage
        if damage is not None:
            raise damage

    def local_copy(self) -> WeightsFile:
        """A copy on this host, in the folder of ``copy_to`` or one of this process; made once. A copy returns itself.

        Raises:
            InvalidInput: as ``copied``.
        """
        if Path(self.uri).name == self._copy_name:
            return self
        return replace(self, uri=str(_local_file(self._copy_name, self._aligned)))

    def _aligned(self) -> Iterator[bytes]:
        with self.opened() as read:
            yield from _aligned(read)

    @property
    def _copy_name(self) -> str:
        return f"sparkdl-weights-{self.sha256}.safetensors"

    def check(self) -> None:
        """Raise InvalidInput unless the header of the file describes as many bytes as it has; reads no tensor."""
        self.header()

    def header(self) -> dict[str, tuple[torch.dtype, torch.Size]]:
        """The dtypes and shapes of the file's tensors; raises InvalidInput as ``check``."""
        try:
            with Folder.of(self.uri).open_file("") as file:
                (length,) = struct.unpack("<Q", file.read_at(8, 0))
                header = dict(json.loads(file.read_at(min(length, self.size), 8)))
            about = header.pop("__metadata__")
            tensors = {name: (_DTYPES[one["dtype"]], torch.Size(one["shape"])) for name, one in header.items()}
            sizes = [shape.numel() * dtype.itemsize for dtype, shape in tensors.values()]
            if "aliases" not in about or 8 + length + sum(sizes) != self.size:
                raise ValueError("its header and its size differ")
            return tensors
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, struct.error) as error:
            raise InvalidInput(f"the saved weights cannot be read: {type(error).__name__}: {error}") from error

    def read(self) -> bytes:
        """The bytes; raises InvalidInput as ``copied`` does."""
        return b"".join(self.copied())


Weights = bytes | WeightsFile
"""The bytes of ``sparkdl.io.weights.pack``, or a file with such bytes."""


def read_weights(weights: Weights) -> dict[str, Any]:
    """Read the ``state_dict``, sorted by name; tensors of a file are mapped. Raises InvalidInput if it is damaged."""
    if isinstance(weights, bytes):
        return read_state(weights)
    try:
        return state_of(*_mapped(weights.local_copy()))
    except InvalidInput:
        raise
    except Exception as error:
        raise InvalidInput(f"the saved weights cannot be read: {error}") from error


def rows_file(rows: Tensor) -> list[Buffer]:
    """The bytes of a file with the rows ``[k, d]`` of a table; the bytes share the memory of dense rows on the CPU."""
    rows = rows.detach().cpu().contiguous()
    header, _ = layout_of({_ROWS: (rows.dtype, tuple(rows.shape))}, {"aliases": "{}"})
    return [header, rows.view(-1).view(torch.uint8).numpy().data]


def rows_header(file: WeightsFile) -> tuple[torch.dtype, torch.Size]:
    """The dtype and the shape of the rows of a file of ``rows_file``; raises InvalidInput if its header is damaged."""
    return file.header()[_ROWS]


def read_rows(file: WeightsFile, first: int, count: int) -> Tensor:
    """``count`` rows of a file of ``rows_file`` from the row ``first``; raises InvalidInput as ``rows_header``."""
    dtype, (rows, width) = rows_header(file)
    begin, size = file.size - rows * width * dtype.itemsize, width * dtype.itemsize
    with Folder.of(file.uri).open_file("") as stream:
        data = bytearray(stream.read_at(count * size, begin + first * size))
    return torch.frombuffer(data, dtype=dtype).view(count, width)


def mapped_rows(files: Sequence[WeightsFile]) -> Tensor:
    """The rows of all files of a table in the order of their ids, mapped from one copy on this host, made once.

    Raises InvalidInput as ``WeightsFile.copied``.
    """
    dtype, (_, width) = rows_header(files[0])
    digest = hashlib.sha256("".join(file.sha256 for file in files).encode()).hexdigest()
    path = _local_file(f"sparkdl-rows-{digest}", lambda: _in_order(files, dtype, width))
    storage = torch.UntypedStorage.from_file(str(path), shared=False, nbytes=path.stat().st_size)
    rows: Tensor = torch.empty(0, dtype=dtype).set_(storage)  # type: ignore[arg-type]
    return rows.view(-1, width)


def _in_order(files: Sequence[WeightsFile], dtype: torch.dtype, width: int) -> Iterator[Buffer]:
    size = width * dtype.itemsize
    count = max(1, CHUNK // (size * len(files)))  # rows of a file at a time
    with ExitStack() as stack:
        reads = [stack.enter_context(file.opened()) for file in files]
        for read in reads:
            read(struct.unpack("<Q", read(8))[0])
        while any(pieces := [read(count * size) for read in reads]):
            rows = torch.empty(sum(map(len, pieces)) // size, width, dtype=dtype)
            for number, piece in enumerate(pieces):
                if piece:
                    rows[number :: len(files)] = torch.frombuffer(bytearray(piece), dtype=dtype).view(-1, width)
            yield rows.view(-1).view(torch.uint8).numpy().data


def assign(module: nn.Module, state: Mapping[str, Any]) -> bool:
    """Let a module's parameters have the memory of a mapped state, and copy its buffers; they stay the same objects.

    torch cannot keep a parameter that has weak references, such as those in an LSTM: the module gets a new parameter.
    If another object still uses the old parameter, or a view of it, ``assign`` returns False. The module then has two
    sets of weights: make another module, and copy the weights into it.

    Raises InvalidInput if the state is of another architecture.
    """
    groups: list[dict[str, Any]] = [group for part in module.modules() for group in (part._parameters, part._buffers)]
    before = [(group, name, value) for group in groups for name, value in group.items() if value is not None]
    load_into(module, state, assign=True)
    try:
        replaced = _keep_objects(before)
    except RuntimeError:  # torch swaps no tensor that a view or a graph shares
        return False
    before.clear()
    return not any(reference() is not None for reference in replaced)


def _keep_objects(before: Sequence[tuple[dict[str, Any], str, Any]]) -> list[weakref.ref[Any]]:
    """Give the tensors of ``before`` the values of those in their place; return the ones that this replaced."""
    objects: dict[int, Any] = {}  # a tied one has several names
    replaced = []
    for group, name, value in before:
        present = group[name]
        if present is not value and id(value) not in objects:
            if not isinstance(value, nn.Parameter) and (value.shape, value.dtype) == (present.shape, present.dtype):
                value.copy_(present)
            elif weakref.getweakrefcount(value):
                objects[id(value)] = present
                replaced.append(weakref.ref(value))
            else:
                torch.utils.swap_tensors(value, present)  # type: ignore[no-untyped-call]
        group[name] = objects.setdefault(id(value), value)
    return replaced


def _aligned(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """The bytes with each tensor at a multiple of 64, as torch aligns its own memory, so that products round alike."""
    (length,) = struct.unpack("<Q", read(8))
    header, end = json.loads(read(length)), 0
    entries = sorted((entry for key, entry in header.items() if key != "__metadata__"), key=_begin)
    sizes = [entry["data_offsets"][1] - entry["data_offsets"][0] for entry in entries]
    for entry, length in zip(entries, sizes, strict=True):
        entry["data_offsets"] = [end, end + length]
        end += length + -length % _ALIGNMENT
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    yield struct.pack("<Q", len(text)) + text
    for length in sizes:
        for begin in range(0, length, CHUNK):
            yield read(min(CHUNK, length - begin))
        yield bytes(-length % _ALIGNMENT)
    read(1)  # no byte of a file that is longer is missed


def _begin(entry: Mapping[str, Any]) -> int:
    return int(entry["data_offsets"][0])


def _mapped(copy: WeightsFile) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a local copy, mapped privately, and its metadata; raises what a damaged file raises."""
    path = Path(copy.uri)
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    about, tensors = dict(header.pop("__metadata__", {})), {}
    storage = torch.UntypedStorage.from_file(str(path), shared=False, nbytes=path.stat().st_size)
    for name, entry in header.items():
        dtype, (first, _) = _DTYPES[entry["dtype"]], entry["data_offsets"]
        begin, tensor = (8 + length + first) // dtype.itemsize, torch.empty(0, dtype=dtype)
        tensors[name] = tensor.set_(storage, begin, torch.Size(entry["shape"]))  # type: ignore[call-overload]
    return tensors, about


def layout_of(
    tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, list[str]]:
    """The header of a safetensors file with these tensors, and the order of their bytes after it."""
    names = sorted(tensors)
    names.sort(key=lambda name: -_ORDER.index(NATIVE[tensors[name][0]]))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        dtype, shape = tensors[name]
        begin, end = end, end + torch.Size(shape).numel() * dtype.itemsize
        header[name] = {"dtype": NATIVE[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, names


def _local_file(name: str, pieces: Callable[[], Iterator[Buffer]]) -> Path:
    """A file on this host with these pieces, made once."""
    path = Path(*_shared_folder or [_process_folder()], name)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the workers of an executor begin together
        try:
            if not path.exists():
                with beside.open("wb") as file:
                    file.writelines(pieces())
                beside.rename(path)
        finally:
            beside.unlink(missing_ok=True)
            fcntl.flock(lock, fcntl.LOCK_UN)  # a process that was forked meanwhile has the lock too
    return path


_shared_folder: list[str] = []  # for copies; empty until ``copy_to``


def copy_to(folder: str) -> None:
    """Make copies in a folder that processes of this host share, from now on; the caller's surroundings delete it."""
    _shared_folder[:] = [folder]


@cache
def _process_folder() -> str:
    # A Python worker of Spark ends without a call of atexit, and Spark deletes the executor's folders.
    folder, process = tempfile.mkdtemp(prefix="sparkdl-weights-", dir=local_directories()[0]), os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == process else None)
    return folder
