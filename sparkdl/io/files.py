"""Files on any filesystem that pyarrow knows: local, HDFS, S3, GCS."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs

from sparkdl.errors import InvalidInput
from sparkdl.io.redaction import public

Buffer = bytes | memoryview

_ALIASES = {"s3a": "s3", "s3n": "s3"}  # what Hadoop calls it -> what pyarrow calls it
_OBJECT_STORES = ("s3", "gcs", "abfs")
_WHOLE = "_SUCCESS"  # what Spark writes last


def locate(uri: str) -> tuple[fs.FileSystem, str]:
    """The filesystem of a URI or a local path, and the path in it.

    As in Spark, nothing is percent-decoded in a file URI.

    Raises:
        InvalidInput: pyarrow knows no such filesystem, or it cannot be reached; a file URI names a host.
    """
    scheme = urlsplit(uri).scheme
    if not scheme:
        return fs.LocalFileSystem(), os.path.abspath(uri)
    if scheme == "file":
        return fs.LocalFileSystem(), _file_path(uri)
    try:
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(_ALIASES.get(scheme, scheme) + uri[len(scheme) :])
    except (OSError, ValueError) as error:
        told = str(error).replace(uri, public(uri))
        raise InvalidInput(f"{public(uri)!r} cannot be opened: {told}") from error
    return found


@dataclass(frozen=True)
class Folder:
    """A folder on any filesystem, looked up once; it need not exist.

    Attributes:
        system: the filesystem.
        path: the folder's path in it. Unlike a URI, it holds no credentials and may be shown to anybody.
    """

    system: fs.FileSystem
    path: str

    @staticmethod
    def of(uri: str) -> Folder:
        """The folder of a URI or a local path; raises what ``locate`` raises."""
        system, path = locate(uri)
        return Folder(system, path.rstrip("/") or path)

    def at(self, name: str) -> str:
        """The path of what has this name in the folder."""
        return f"{self.path}/{name}" if name else self.path

    def write(self, name: str, *data: Buffer) -> None:
        """Write a file whole, as ``sparkdl.io.files.write`` does; its pieces one behind the other."""
        _write(self.system, self.at(name), data)

    def open(self, name: str) -> Any:
        """A file as a stream of bytes; raises FileNotFoundError where there is none."""
        return self.system.open_input_stream(self.at(name))

    def read(self, name: str) -> bytes:
        """The bytes of a file; raises FileNotFoundError where there is none."""
        with self.open(name) as stream:
            data: bytes = stream.read()
        return data

    def exists(self, name: str) -> bool:
        """Whether there is a file or a folder of this name."""
        return bool(self.system.get_file_info(self.at(name)).type != fs.FileType.NotFound)

    def sizes(self, name: str) -> dict[str, int]:
        """The files of a folder in this one, with their sizes in bytes; none where there is no such folder."""
        return {info.base_name: info.size for info in self._inside(name) if info.type == fs.FileType.File}

    def folders(self) -> list[str]:
        """The names of the folders in this one; none where there is no such folder."""
        return [info.base_name for info in self._inside("") if info.type == fs.FileType.Directory]

    def delete(self, name: str) -> None:
        """Delete a file, or a folder and what is in it; nothing is to be done where there is neither."""
        _delete(self.system, self.at(name))

    def _inside(self, name: str) -> list[fs.FileInfo]:
        found: list[fs.FileInfo] = self.system.get_file_info(fs.FileSelector(self.at(name), allow_not_found=True))
        return found


def local_path(uri: str) -> str | None:
    """The path of a file URI or a local path; None for another filesystem."""
    system, path = locate(uri)
    return path if isinstance(system, fs.LocalFileSystem) else None


def absolute(uri: str) -> str:
    """A local path as a process with another working directory would have to write it; a URI as it is."""
    return uri if urlsplit(uri).scheme else os.path.abspath(uri)


def join(uri: str, name: str) -> str:
    """The URI or path of what has this name in a folder; the options that a URI ends with stay at its end."""
    scheme = urlsplit(uri).scheme
    head, mark, options = uri.partition("?") if scheme not in ("", "file") else (uri, "", "")
    return f"{head.rstrip('/')}/{name}{mark}{options}"


def write(uri: str, data: bytes) -> None:
    """Write a file whole: readers see the old one or the new one, never half of it.

    An object store shows an object only when it is complete; elsewhere the file is written beside its place, synced
    and renamed.
    """
    _write(*locate(uri), [data])


def read(uri: str) -> bytes:
    """The bytes of a file.

    Raises:
        FileNotFoundError: there is no such file.
    """
    system, path = locate(uri)
    with system.open_input_stream(path) as stream:
        data: bytes = stream.read()
    return data


def delete(uri: str) -> None:
    """Delete a file, or a directory and what is in it; nothing is to be done where there is neither."""
    _delete(*locate(uri))


def replace(staged: str, uri: str) -> None:
    """Put a directory in the place of another file or directory, or of none.

    What is there is moved aside, and back again if the new one cannot come. An object store has no moves: there the
    old one is deleted and the new one copied, and readers in between see part of it, without the ``_SUCCESS`` that
    Spark puts beside what is whole.
    """
    system, source = locate(staged)
    path = locate(uri)[1]
    if system.type_name in _OBJECT_STORES:
        _copy(Folder(system, source), Folder(system, path))
        return
    folder, _, name = path.rpartition("/")
    aside = f"{folder}/.{name}.{uuid.uuid4().hex}.old" if exists(uri) else None  # hidden from Spark's readers
    if aside is not None:
        system.move(path, aside)
    try:
        system.move(source, path)
    except BaseException:
        if aside is not None:
            system.move(aside, path)
        raise
    if aside is not None:
        _delete(system, aside)


def _copy(source: Folder, place: Folder) -> None:
    whole = source.exists(_WHOLE)
    place.delete(_WHOLE)
    place.delete("")
    source.delete(_WHOLE)
    fs.copy_files(source.path, place.path, source_filesystem=source.system, destination_filesystem=place.system)
    if whole:
        place.write(_WHOLE)
    source.delete("")


def exists(uri: str) -> bool:
    """Whether there is a file or a directory."""
    system, path = locate(uri)
    return bool(system.get_file_info(path).type != fs.FileType.NotFound)


def _write(system: fs.FileSystem, path: str, data: Sequence[Buffer]) -> None:
    if system.type_name in _OBJECT_STORES:
        _pour(system, path, data)
        return
    local = isinstance(system, fs.LocalFileSystem)
    fresh = _missing(os.path.dirname(path)) if local else []
    system.create_dir(os.path.dirname(path), recursive=True)
    beside = f"{path}.{uuid.uuid4().hex}.tmp"
    try:
        _pour(system, beside, data)
        if local:
            _sync(beside)
        system.move(beside, path)
    except BaseException:
        if system.get_file_info(beside).type != fs.FileType.NotFound:
            system.delete_file(beside)
        raise
    if local:  # a file outlives a power cut once every folder that is new on the way to it is in the one above
        for folder in (path, *fresh):
            _sync(os.path.dirname(folder))


def _pour(system: fs.FileSystem, path: str, data: Sequence[Buffer]) -> None:
    with system.open_output_stream(path) as stream:
        for piece in data:
            stream.write(piece)


def _missing(path: str) -> list[str]:
    found = []
    while not os.path.exists(path):
        found.append(path)
        path = os.path.dirname(path)
    return found


def _delete(system: fs.FileSystem, path: str) -> None:
    found = system.get_file_info(path).type
    if found == fs.FileType.Directory:
        system.delete_dir(path)
    elif found != fs.FileType.NotFound:
        system.delete_file(path)


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
