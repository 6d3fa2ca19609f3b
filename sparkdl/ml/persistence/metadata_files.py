"""The metadata of saved instances, in pyspark.ml's format, written and read without a Spark job.

This process writes ``metadata/part-00000``, one line of JSON, and the empty ``metadata/_SUCCESS``. It reads what Spark
reads: files of any name that is not hidden. Only files that Spark has compressed are read by Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyspark
from pyspark.ml.param import Params
from pyspark.ml.util import DefaultParamsWriter
from pyspark.sql import SparkSession, is_remote

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.redaction import public

_METADATA = re.compile(r"((?:.*/)?metadata)(?:/.*)?", re.DOTALL)  # the innermost folder of files, or a file
_HIDDEN = re.compile(r"(?:.*/)?(?:\.|_[^=/]*$)[^/]*", re.DOTALL)  # files that Spark's readers skip
_PLAIN = re.compile(r"(?:.*/)?[^./]*(?:\.txt)?", re.DOTALL)  # another suffix may be a codec's


def escaped(path: str) -> str:
    """A path for Spark's readers, which take a path for a pattern."""
    return re.sub(r"([\\\[\]{}*?,])", r"\\\1", path)


def write(root: str, params: Params, fields: dict[str, Any]) -> None:
    """Write the metadata of an instance: its class, uid and Params, the version of pyspark, and further fields."""
    session: Any = SimpleNamespace(version=pyspark.__version__)  # the only attribute that pyspark reads of a session
    line = DefaultParamsWriter._get_metadata_to_save(params, session, fields)
    files.Folder.of(root).write("metadata/part-00000", f"{line}\n".encode())
    files.Folder.of(root).write("metadata/_SUCCESS")


def read(root: str, session: SparkSession) -> dict[str, Any]:
    """Read the metadata in a folder; raises FileNotFoundError if there is none, other errors if it is damaged."""
    names = [f"metadata/{name}" for name in files.Folder.of(root).sizes("metadata")]
    for _, metadata in lines(root, session, names):
        return {"class": metadata["class"], **metadata}
    raise FileNotFoundError("metadata/part-00000 is missing.")


def check_shared(root: str, session: SparkSession) -> None:
    """Check that this process sees the metadata that Spark wrote in a folder; raises ``InvalidInput`` if not."""
    try:
        read(root, session)
    except FileNotFoundError as error:
        writer = "the Spark server" if is_remote() else "an executor"
        raise InvalidInput(
            f"{writer} wrote {public(root)} to its own files; expected a path that it shares with this process, such "
            "as s3:// or /Volumes."
        ) from error


def lines(root: str, session: SparkSession, names: list[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line of all metadata that Spark's readers may read below a folder, or in ``names``, with its folder."""
    for name in sorted(files.Folder.of(root).walk() if names is None else names):
        if (match := _METADATA.fullmatch(name)) and not _HIDDEN.fullmatch(name):
            if _PLAIN.fullmatch(name):
                rows = [line.decode() for line in files.Folder.of(root).read(name).splitlines()]
            else:
                rows = [row.value for row in session.read.text(escaped(f"{root}/{name}")).collect()]
            yield from ((match[1], json.loads(row)) for row in rows if row.strip())
