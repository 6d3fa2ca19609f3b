"""Files on any pyarrow filesystem: local, HDFS, S3, GCS."""

from __future__ import annotations

import json
import os
import re
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from pyarrow import fs

from sparkdl.errors import InvalidInput
from sparkdl.io.redaction import masked, public

Buffer = bytes | memoryview
StrPath = str | os.PathLike[str]

_PARTS = re.compile(r"(:(?://[^/?]*)?)([^?]*)(.*)", re.DOTALL)  # of a URI after its scheme
_ALIASES = {"s3a": "s3", "s3n": "s3"}  # Hadoop's scheme -> pyarrow's
_OBJECT_STORES = ("s3", "gcs", "abfs")
_MARKER = "_SUCCESS"  # Spark writes it last


def locate(uri: StrPath) -> tuple[fs.FileSystem, str]:
    """Resolve a URI or local path to its filesystem and the path in it; as in Spark, paths are not percent-decoded.

    Raises:
        InvalidInput: pyarrow does not know or reach the filesystem, or a file URI names a host.
    """
    uri = os.fspath(uri)
    scheme = urlsplit(uri).scheme
    if not scheme:
        return fs.LocalFileSystem(), os.path.abspath(uri)
    if not uri.lower().startswith(f"{scheme}:"):  # urlsplit leaves out blanks
        raise InvalidInput(
            f"{public(uri)!r} has a blank before or in its scheme; expected a path or a URI, such as s3://bucket/runs."
        )
    if scheme == "file":
        return fs.LocalFileSystem(), _file_path(uri)
    store, path, options = _PARTS.fullmatch(uri, len(scheme)).groups()  # type: ignore[union-attr]
    try:
        system, path = fs.FileSystem.from_uri(f"{_ALIASES.get(scheme, scheme)}{store}{quote(path)}{options}")
    except (OSError, ValueError) as error:
        reason = masked(str(error).replace(uri, public(uri)))
        raise InvalidInput(f"{public(uri)!r} cannot be opened: {reason}") from error
    return system, path


@dataclass(frozen=True)
class Folder:
    """A folder on any filesystem, resolved once; it need not exist. Unlike a URI, its path holds no credentials."""

    system: fs.FileSystem
    path: str

    @staticmethod
    def of(uri: StrPath) -> Folder:
        """Resolve a URI or local path."""
        system, path = locate(uri)
        return Folder(system, path.rstrip("/") or path)

    def at(self, name: str) -> str:
        """The path of an entry of the folder."""
        return f"{self.path}/{name}" if name else self.path

    def write(self, name: str, *data: Buffer) -> None:
        """Write a file atomically from its chunks: readers see the old or the new content, never part of it."""
        self.write_stream(name, data)

    def write_stream(self, name: str, data: Iterable[Buffer]) -> None:
        """Write a file as ``write`` does, from chunks that are made while it is written."""
        system, path = self.system, self.at(name)
        if system.type_name in _OBJECT_STORES:  # which show an object only once it is complete
            broken: list[bool] = []
            try:
                _pour(system, path, _noting(data, broken))
            except BaseException:
                if broken:  # closing the stream has completed the object
                    with suppress(OSError):
                        self.delete(name)
                raise
            return
        local = isinstance(system, fs.LocalFileSystem)
        fresh = [*takewhile(lambda folder: not folder.exists(), Path(path).parents)] if local else []
        system.create_dir(os.path.dirname(path), recursive=True)
        beside = f"{path}.{uuid.uuid4().hex}.tmp"
        try:
            _pour(system, beside, data)
            if local:
                _sync(beside)
            system.move(beside, path)
        except BaseException:
            Folder(system, beside).delete("")
            raise
        if local:  # a file survives a power cut only if every new folder above it is synced as well
            for file in (path, *map(str, fresh)):
                _sync(os.path.dirname(file))

    def open(self, name: str) -> Any:
        """Open a file as a byte stream; raises FileNotFoundError if it does not exist."""
        return self.system.open_input_stream(self.at(name))

    def open_file(self, name: str) -> Any:
        """Open a file for reads at any place, ``read_at(count, offset)``; raises FileNotFoundError if it is missing."""
        return self.system.open_input_file(self.at(name))

    def read(self, name: str) -> bytes:
        """Read a file; raises FileNotFoundError if it does not exist."""
        with self.open(name) as stream:
            return bytes(stream.read())

    def read_json(self, name: str, advice: str, **fields: type | tuple[type, ...]) -> dict[str, Any]:
        """Read a JSON object with ``fields`` of these types; raises InvalidInput with ``advice`` if it is damaged."""
        try:
            values = json.loads(self.read(name))
            if wrong := [field for field, kind in fields.items() if not isinstance(values[field], kind)]:
                raise TypeError(f"{wrong[0]} is {values[wrong[0]]!r:.80}")
            return {**values}
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise InvalidInput(f"{self.at(name)} is damaged ({reason}). {advice}") from error

    def exists(self, name: str) -> bool:
        """Whether a file or folder of this name exists."""
        return bool(self.system.get_file_info(self.at(name)).type != fs.FileType.NotFound)

    def sizes(self, name: str) -> dict[str, int]:
        """Sizes in bytes of a subfolder's files, by name; empty if the subfolder does not exist."""
        return {info.base_name: info.size for info in self._inside(name) if info.type == fs.FileType.File}

    def folders(self) -> list[str]:
        """Names of the subfolders; empty if the folder does not exist."""
        return [info.base_name for info in self._inside("") if info.type == fs.FileType.Directory]

    def walk(self) -> list[str]:
        """Paths in the folder of all files in it, at any depth, in order; empty if the folder does not exist."""
        infos = self.system.get_file_info(fs.FileSelector(self.path, recursive=True, allow_not_found=True))
        return sorted(info.path[len(self.path) + 1 :] for info in infos if info.type == fs.FileType.File)

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with its contents; a missing one is ignored."""
        path = self.at(name)
        kind = self.system.get_file_info(path).type
        if kind == fs.FileType.Directory:
            self.system.delete_dir(path)
        elif kind != fs.FileType.NotFound:
            self.system.delete_file(path)

    def _inside(self, name: str) -> list[fs.FileInfo]:
        return list(self.system.get_file_info(fs.FileSelector(self.at(name), allow_not_found=True)))


def local_directories() -> list[str]:
    """The local disks of a Spark executor; without any, the system's temporary folder."""
    folders = [folder for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if os.path.isdir(folder)]
    return folders or [tempfile.gettempdir()]


def local_path(uri: StrPath) -> str | None:
    """The path of a file URI or local path; None for another filesystem."""
    system, path = locate(uri)
    return path if isinstance(system, fs.LocalFileSystem) else None


def absolute(uri: str) -> str:
    """Make a local path, or a URI of one, an absolute path; another URI stays as it is."""
    return os.fspath(local_path(uri) or uri) if urlsplit(uri).scheme in ("", "file") else uri


def join(uri: str, name: str) -> str:
    """Append a name to a folder's URI or path; a URI's options stay at its end."""
    scheme = urlsplit(uri).scheme
    head, mark, options = (uri, "", "") if scheme in ("", "file") else uri.partition("?")
    return f"{head.rstrip('/')}/{name}{mark}{options}"


def write(uri: StrPath, data: bytes) -> None:
    """Write a file atomically: readers see the old or the new content, never part of it."""
    Folder(*locate(uri)).write("", data)


def read(uri: StrPath) -> bytes:
    """Read a file; raises FileNotFoundError if it does not exist."""
    return Folder(*locate(uri)).read("")


def size(uri: StrPath) -> int:
    """Bytes of a file; raises FileNotFoundError if it does not exist."""
    system, path = locate(uri)
    info = system.get_file_info(path)
    if info.type != fs.FileType.File:
        raise FileNotFoundError(f"{path} does not exist")
    return int(info.size)


def delete(uri: StrPath) -> None:
    """Delete a file, or a directory with its contents; a missing one is ignored."""
    Folder(*locate(uri)).delete("")


def replace(staged: str, uri: str) -> None:
    """Move a staged directory to a path, replacing a file or directory there.

    The old content is moved aside, and moved back if the new one cannot be moved. On object stores, which cannot move,
    readers may see part of the copy, without Spark's ``_SUCCESS`` marker.
    """
    system, source = locate(staged)
    path = locate(uri)[1]
    if system.type_name in _OBJECT_STORES:
        _copy(Folder(system, source), Folder(system, path))
    elif not exists(uri):
        system.move(source, path)
    else:
        folder, _, name = path.rpartition("/")
        aside = f"{folder}/.{name}.{uuid.uuid4().hex}.old"  # Spark's readers skip hidden names
        system.move(path, aside)
        try:
            system.move(source, path)
        except BaseException:
            system.move(aside, path)
            raise
        Folder(system, aside).delete("")


def copy(uri: str, target: str) -> None:
    """Copy a folder with its contents to a place that does not exist, on any filesystem."""
    (system, source), (target_system, path) = locate(uri), locate(target)
    fs.copy_files(source, path, source_filesystem=system, destination_filesystem=target_system)


def _copy(source: Folder, place: Folder) -> None:
    complete = source.exists(_MARKER)
    place.delete(_MARKER)
    place.delete("")
    source.delete(_MARKER)
    fs.copy_files(source.path, place.path, source_filesystem=source.system, destination_filesystem=place.system)
    if complete:
        place.write(_MARKER)
    source.delete("")


def exists(uri: StrPath) -> bool:
    """Whether a file or directory exists."""
    return Folder(*locate(uri)).exists("")


def _noting(data: Iterable[Buffer], broken: list[bool]) -> Iterator[Buffer]:
    """The chunks; appends to ``broken`` if one of them cannot be made."""
    try:
        yield from data
    except Exception:
        broken.append(True)
        raise


def _pour(system: fs.FileSystem, path: str, data: Iterable[Buffer]) -> None:
    with system.open_output_stream(path) as stream:
        for piece in data:
            stream.write(piece)


def _file_path(uri: str) -> str:
    path = uri[len("file:") :]
    if path.startswith("//"):
        host, slash, path = path[2:].partition("/")
        if host not in ("", "localhost"):
            raise InvalidInput(f"{uri!r} names the host {host!r}; expected file:///path, with three slashes.")
        path = slash + path
    return os.path.abspath(path)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
