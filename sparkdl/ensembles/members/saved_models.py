"""Models that pyspark.ml can save, kept one by one: each comes into its place whole, and is known to be whole.

    <directory>/model/          as the model's own writer has it
    <directory>/member.json     the seconds of its fit, and a digest of all files of ``model/``

Both are written beside the place and moved there together. An object store has no moves and copies file by file; what
is left where that was cut short has not its digest.

Nothing is unpickled: whoever may write to a run's directory may replace weights, but must not run code on the driver.
A model with pickled parts, as of a PyTorch module that neither has a name nor can be exported, is loaded only if the
session's ``spark.sparkdl.trust`` says so, as everywhere else.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import uuid
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs
from pyspark.ml import Model
from pyspark.ml.util import DefaultParamsReader, MLWritable
from pyspark.sql import SparkSession

from sparkdl.errors import InvalidInput
from sparkdl.io import files

_MODEL = "model"
_RECORD = "member.json"


def save_model(folder: str, name: str, model: Model, seconds: float) -> None:
    """Save a model, in the place of one that is there.

    Args:
        folder: in which its directory is to be, a local path or a URI that both Spark and ``pyarrow.fs`` know.
        name: of its directory.
        model: what is saved.
        seconds: how long its fit took.

    Raises:
        InvalidInput: it has no writer; Spark cannot write there, or its executors write elsewhere.
        Exception: what the writer raises.
    """
    if not isinstance(model, MLWritable):
        raise InvalidInput(f"{type(model).__name__} cannot be saved: it is no pyspark.ml.util.MLWritable.")
    staged = files.join(folder, f"{name}.{uuid.uuid4().hex}.tmp")
    inside = files.join(staged, _MODEL)
    try:
        model.write().overwrite().save(_as_spark_has_it(inside))
        record = {"seconds": seconds, "digest": _digest(inside)}
        files.write(files.join(staged, _RECORD), json.dumps(record).encode())
        files.replace(staged, files.join(folder, name))
    except BaseException:
        files.delete(staged)
        raise


def read_record(directory: str) -> dict[str, Any]:
    """What was written beside a model; raises FileNotFoundError where there is none."""
    found: dict[str, Any] = json.loads(files.read(files.join(directory, _RECORD)))
    return found


def load_model(directory: str) -> Model:
    """Load a model that ``save_model`` saved.

    Raises:
        FileNotFoundError: there is none.
        InvalidInput: it is damaged, is no model, or has pickled parts.
        Exception: what the reader raises.
    """
    inside, record = files.join(directory, _MODEL), read_record(directory)
    if record["digest"] != _digest(inside):
        raise InvalidInput("its files have changed.")
    path = _as_spark_has_it(inside)
    saved: str = DefaultParamsReader.loadMetadata(path, SparkSession.active())["class"]
    module, _, name = saved.replace("org.apache.spark", "pyspark").rpartition(".")
    kind: Any = getattr(importlib.import_module(module), name)
    if not (isinstance(kind, type) and issubclass(kind, Model)):
        raise InvalidInput(f"it holds a {saved}; expected a pyspark.ml Model.")
    loaded: Model = kind.load(path)  # type: ignore[attr-defined]
    return loaded


def _as_spark_has_it(uri: str) -> str:
    """A path or URI for Hadoop's filesystems, which take no credentials and options from it."""
    local = files.local_path(uri)
    if local is not None:
        return f"file://{local}"
    parts = urlsplit(uri)
    if parts.query or parts.password:
        raise InvalidInput(
            "the URI of runDir has credentials or options, which Spark does not take from a URI; expected a URI "
            "without, and them in the session's spark.hadoop settings and the environment."
        )
    return uri


def _digest(uri: str) -> str:
    """The SHA-256 of all files in a folder, by name.

    Raises:
        InvalidInput: a folder that Spark has written has no data: executors wrote it elsewhere.
    """
    folder = files.Folder.of(uri)
    infos = folder.system.get_file_info(fs.FileSelector(folder.path, recursive=True, allow_not_found=True))
    paths = [info.path for info in infos if info.type == fs.FileType.File]
    # Hadoop keeps checksums in hidden files, which not every copy has.
    names = sorted(path[len(folder.path) + 1 :] for path in paths if not path.rpartition("/")[2].startswith("."))
    parents = [name.rpartition("/")[0] for name in names]
    for name, parent in zip(names, parents, strict=True):
        if name.endswith("_SUCCESS") and parents.count(parent) == 1:
            raise InvalidInput(
                f"{folder.at(parent)} has no data: executors have written it to disks of their own. Set runDir to a "
                "directory that all hosts share, such as hdfs:// or s3a://."
            )
    found = hashlib.sha256()
    for name in names:
        found.update(f"{name} {hashlib.sha256(folder.read(name)).hexdigest()}\n".encode())
    return found.hexdigest()
