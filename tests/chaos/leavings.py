"""What a gang may leave behind: processes, sockets, files; read from /proc."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from sparkdl.cluster.zygote import zygote


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def descendants(pid: int | None = None) -> set[int]:
    """The processes below a process, by default this one."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            parents[int(folder.name)] = parent(int(folder.name))
    found, new = set[int](), {pid or os.getpid()}
    while new := {child for child, above in parents.items() if above in new}:
        found |= new
    return found


def descriptors(pid: int) -> list[str]:
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return found


def tcp(pids: Iterable[int], state: str = "", *, net: str = "/proc/net") -> set[tuple[str, int]]:
    """Address and port of the TCP sockets of some processes.

    Args:
        pids: the processes.
        state: of the sockets, in the kernel's hexadecimal; empty for any.
        net: the folder of the kernel's tables, which another network namespace has in another place.
    """
    owned = {name for pid in pids for name in descriptors(pid)}
    found = set()
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(net, table).read_text().splitlines()[1:]:
            _, local, _, now, _, _, _, _, _, inode, *_ = line.split()
            if f"socket:[{inode}]" in owned and now.startswith(state):
                host, _, port = local.partition(":")
                words = b"".join(bytes.fromhex(host[place : place + 8])[::-1] for place in range(0, len(host), 8))
                found.add((socket.inet_ntop(family, words), int(port, 16)))
    return found


def listening(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Address and port of the TCP sockets on which some processes listen."""
    return tcp(pids, "0A")


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
    before = descendants(), len(descriptors(os.getpid())), tcp([os.getpid()])
    yield
    assert (descendants(), len(descriptors(os.getpid())), tcp([os.getpid()])) == before
