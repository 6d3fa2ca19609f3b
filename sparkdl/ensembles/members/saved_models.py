"""Atomic, verified storage of pyspark.ml models, one directory each.

    <directory>/model/          files of the model's own writer
    <directory>/member.json     seconds of the fit, and a digest of all files of ``model/``

Both are staged beside the directory and moved into place together. Object stores copy file by file instead; the digest
reveals an incomplete copy.

Loading unpickles nothing: an attacker with write access to the run's directory can replace weights but cannot run code
on the driver. A model with pickled parts, such as a PyTorch module without a name or export, loads only if the
session sets ``spark.sparkdl.trust``.
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
    """Save a model and the seconds of its fit in ``<folder>/<name>``, replacing an existing one.

    Raises:
        InvalidInput: the model has no writer, Spark cannot write to the folder, or executors write elsewhere.
        Exception: the writer fails.
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


def load_model(directory: str) -> tuple[Model, float]:
    """Load a model that ``save_model`` saved, and the seconds of its fit.

    Raises:
        FileNotFoundError: there is no model.
        InvalidInput: the model is damaged, is no pyspark.ml Model, or has pickled parts.
        Exception: the reader fails.
    """
    inside, record = files.join(directory, _MODEL), json.loads(files.read(files.join(directory, _RECORD)))
    if record["digest"] != _digest(inside):
        raise InvalidInput("its files have changed.")
    path = _as_spark_has_it(inside)
    saved: str = DefaultParamsReader.loadMetadata(path, SparkSession.active())["class"]
    module, _, name = saved.replace("org.apache.spark", "pyspark").rpartition(".")
    kind: Any = getattr(importlib.import_module(module), name)
    if not (isinstance(kind, type) and issubclass(kind, Model)):
        raise InvalidInput(f"it is a {saved}; expected a pyspark.ml Model.")
    return kind.load(path), float(record["seconds"])  # type: ignore[attr-defined]


def _as_spark_has_it(uri: str) -> str:
    """A path or URI for Hadoop's filesystems, which read no credentials or options from URIs."""
    local = files.local_path(uri)
    if local is not None:
        return f"file://{local}"
    parts = urlsplit(uri)
    if parts.query or parts.password:
        raise InvalidInput(
            "the URI of runDir has credentials or options, which Spark does not read from a URI; set them in the "
            "session's spark.hadoop settings and the environment."
        )
    return uri


def _digest(uri: str) -> str:
    """SHA-256 of all files in a folder, by name.

    Raises:
        InvalidInput: a folder that Spark wrote has no data, because executors wrote elsewhere.
    """
    folder = files.Folder.of(uri)
    infos = folder.system.get_file_info(fs.FileSelector(folder.path, recursive=True, allow_not_found=True))
    paths = [info.path for info in infos if info.type == fs.FileType.File]
    # Hadoop stores checksums in hidden files, which some copies lack.
    names = sorted(path[len(folder.path) + 1 :] for path in paths if not path.rpartition("/")[2].startswith("."))
    parents = [name.rpartition("/")[0] for name in names]
    for name, parent in zip(names, parents, strict=True):
        if name.endswith("_SUCCESS") and parents.count(parent) == 1:
            raise InvalidInput(
                f"{folder.at(parent)} has no data: executors wrote it to their own disks. Set runDir to a "
                "directory that all hosts share, such as hdfs:// or s3a://."
            )
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name} {hashlib.sha256(folder.read(name)).hexdigest()}\n".encode())
    return digest.hexdigest()
