"""Probes that run on executors. Their modules import no torch, so that they also run where torch is broken."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import closing
from dataclasses import dataclass

from sparkdl.io.files import local_directories
from sparkdl.net.protocol import Connection, Endpoint
from sparkdl.telemetry.recorder import CONNECT_SECONDS

_WRITTEN = 1 << 20  # bytes


def disks() -> list[tuple[str, int, str]]:
    """The folders for shards: path, free bytes, and the error if 1 MiB cannot be written."""
    return [(folder, shutil.disk_usage(folder).free, _write(folder)) for folder in local_directories()]


def _write(folder: str) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_WRITTEN))
    except OSError as error:
        return error.strerror or str(error)
    return ""


@dataclass(frozen=True)
class ChannelProbe:
    """Connects to the driver's channel as a worker does."""

    endpoint: Endpoint

    def __call__(self) -> list[str]:
        """An error for each of the driver's addresses; empty if one of them answers."""
        errors = []
        for address in self.endpoint.addresses:
            try:
                with closing(Connection.open(address, self.endpoint, CONNECT_SECONDS)):
                    return []
            except OSError as error:
                errors.append(f"{address} port {self.endpoint.port}: {error}")
        return errors
