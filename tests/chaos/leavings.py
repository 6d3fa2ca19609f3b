"""Processes, sockets and files that a gang may leave behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from sparkdl.cluster.zygote import zygote


def descendants(pid: int | None = None) -> set[int]:
    """The processes below a process, by default this one."""
    return {child.pid for child in psutil.Process(pid).children(recursive=True)}


def tcp(pids: Iterable[int], *states: str) -> set[tuple[str, int]]:
    """Address and port of the TCP sockets of some processes, in all states or in some."""
    addresses = set()
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            for socket in psutil.Process(pid).net_connections("tcp"):
                if not states or socket.status in states:
                    addresses.add(tuple(socket.laddr))
    return addresses


def listening(pids: Iterable[int]) -> set[tuple[str, int]]:
    return tcp(pids, psutil.CONN_LISTEN)


@contextmanager
def temporary(folder: Path) -> Iterator[Path]:
    """Temporary files of this process and its children lie in a folder, which is empty afterwards."""
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder.with_name("compiler")))  # made when PyTorch is loaded
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder
    assert list(folder.iterdir()) == []


@contextmanager
def nothing_left() -> Iterator[None]:
    """At the end of the block no process, TCP socket or descriptor of a cluster is left."""
    zygote()  # lives as long as this process
    before = descendants(), psutil.Process().num_fds(), tcp([os.getpid()])
    yield
    assert (descendants(), psutil.Process().num_fds(), tcp([os.getpid()])) == before
