"""A task that reports its host, its versions and the results of probes.

The driver sends these functions by value. They import only Python's own modules, so that they also run where sparkdl
is missing or torch is broken.
"""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MODULES = ("sparkdl", "torch", "pyspark", "pyarrow", "numpy")


def examine(probes: Mapping[str, bytes], hold: float, rows: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield this process's host and executor, its versions, and each probe's value or error.

    Args:
        probes: pickled callables by name; their values are plain data.
        hold: seconds to keep the task's slot, so that tasks of other jobs go to the other slots.
        rows: of the partition, all of which are read.
    """
    deque(rows, maxlen=0)
    ends = time.monotonic() + hold
    versions = {name: version_of(name) for name in MODULES}
    report = {
        "host": socket.gethostname(),
        "executor": os.environ.get("SPARK_LOCAL_DIRS", ""),  # each executor has folders of its own
        "versions": {"Python": (f"{sys.version_info.major}.{sys.version_info.minor}", ""), **versions},
        "probes": {name: probe_result(pickled) for name, pickled in probes.items()},
    }
    time.sleep(max(0.0, ends - time.monotonic()))
    yield report


def version_of(module: str) -> tuple[str | None, str]:
    """The version of a module, and the error if it cannot be imported."""
    try:
        return str(importlib.import_module(module).__version__), ""
    except Exception as error:  # a broken installation may raise anything
        return None, f"{type(error).__name__}: {error}"


def probe_result(pickled: bytes) -> tuple[Any, str]:
    """The value of a pickled callable, and the error if it raises or cannot be unpickled."""
    try:
        return pickle.loads(pickled)(), ""  # noqa: S301 - the driver sends it
    except Exception as error:  # a broken installation may raise anything
        return None, str(getattr(error, "message", "")) or f"{type(error).__name__}: {error}"
