"""Saved models in folders of this host, written and read without Spark.

A folder is what ``TorchModel.write().save`` writes, and ``TorchModel.load`` reads it where Spark can see it. With Spark
it is an executor that writes the metadata, which on a cluster is not this host.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyspark
from pyspark.ml.util import DefaultParamsWriter

from sparkdl.io import files
from sparkdl.ml.model import TorchModel
from sparkdl.ml.persistence.reader_writer import METADATA, Reader, Writer

__all__ = ["read_folder", "write_folder"]


def write_folder(model: TorchModel, folder: str) -> None:
    """Save a model.

    Args:
        model: what is saved.
        folder: a path on this host; what is there is overwritten.

    Raises:
        InvalidInput: a part of it cannot even be pickled.
    """
    written, plain, said = Writer(model).packed()
    for name, data in written.items():
        files.write(f"{folder}/{name}", data)
    version: Any = SimpleNamespace(version=pyspark.__version__)  # all that it asks a session for
    metadata = DefaultParamsWriter._get_metadata_to_save(plain, version, said)
    files.write(f"{folder}/{METADATA}", f"{metadata}\n".encode())


def read_folder(folder: str, *, trust: bool = False) -> TorchModel:
    """Load a model that ``write_folder`` saved.

    Args:
        folder: a path on this host.
        trust: load it even where a part of it is pickled, and loading runs code that is in it.

    Raises:
        InvalidInput: as ``TorchModel.load``.
    """
    model: TorchModel = Reader(TorchModel).local().trust(trust).load(folder)
    return model
