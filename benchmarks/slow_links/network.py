"""Slow cables between the hosts of a test network, and the bytes on them.

A token bucket at both ends of a cable limits each direction to the same rate (``tc-tbf``). The network namespaces own
the buckets, so the end of the hosts removes them.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from benchmarks.hosts import Host, Hosts, missing
from sparkdl.cluster.shutdown import TERMINATED

INTERFACE = "eth0"  # of a host's end of its cable
LATENCY = "50ms"  # a packet that would wait longer is dropped, as by a switch
BURST = 16 << 10  # bytes of the least burst


def lacking() -> str | None:
    """Why this machine cannot have slow cables; None if it can."""
    if shutil.which("tc") is None:
        return "there is no tc: install iproute2"
    return missing()


@contextmanager
def network(names: Sequence[str]) -> Iterator[Hosts]:
    """Hosts with these names, which end with the block: also by an error, Ctrl-C or SIGTERM."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="sparkdl-links-") as folder,
            Hosts(Path(folder, "hosts"), names) as hosts,
        ):
            yield hosts
    finally:
        signal.signal(signal.SIGTERM, before)


def shape(hosts: Iterable[Host], mbit: float) -> None:
    """Limit both directions of these hosts' cables.

    Args:
        hosts: the hosts.
        mbit: megabits per second, headers included.
    """
    for host in hosts:
        for namespace, interface in _ends(host):
            subprocess.run(bucket(namespace, interface, mbit), check=True)


def unshape(hosts: Iterable[Host]) -> None:
    """Remove the limits of ``shape``."""
    for host in hosts:
        for namespace, interface in _ends(host):
            subprocess.run(["tc", "-n", namespace, "qdisc", "delete", "dev", interface, "root"], check=True)


def _ends(host: Host) -> list[tuple[str, str]]:
    """The namespace and the interface of both ends of a host's cable."""
    return [(host.namespace, INTERFACE), (host.switch, host.name)]


def bucket(namespace: str, interface: str, mbit: float) -> list[str]:
    """The command that limits what an interface sends.

    The burst is 2 ms of the rate, and at least ``BURST``; ``tc`` splits larger packets.
    """
    burst = max(BURST, round(mbit * 1e6 / 8 * 0.002))
    limit = ["tbf", "rate", f"{round(mbit * 1e6)}bit", "burst", f"{burst}b", "latency", LATENCY]
    return ["tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root", *limit]


def single_packets(hosts: Iterable[Host]) -> None:
    """Let hosts hand each packet to the cable by itself: the kernel then counts the headers of every packet.

    By default it counts the headers of up to 64 KiB once, as a network card splits them. Single packets take processor
    time: with two cores, a cable of 1000 Mbit/s is then never full.
    """
    for host in hosts:
        command = ["ip", "-n", host.namespace, "link", "set", INTERFACE, "gso_max_segs", "1"]
        subprocess.run(command, check=True)


def bytes_sent(text: str, interface: str = INTERFACE) -> int:
    """Bytes that an interface has sent, by the kernel's count with headers.

    Args:
        text: of ``/proc/net/dev``, which lists the interfaces of the reader's own host.
        interface: its name.

    Raises:
        ValueError: the text does not list the interface.
    """
    for line in text.splitlines():
        name, colon, counters = line.partition(":")
        if colon and name.strip() == interface:
            return int(counters.split()[8])  # eight counters of what it received come first
    raise ValueError(f"/proc/net/dev has no interface {interface!r}:\n{text}")


def sent_by_this_host() -> int:
    """Bytes that this process's host has sent through its cable; 0 without one."""
    text = Path("/proc/net/dev").read_text(encoding="utf-8")
    return bytes_sent(text) if f"{INTERFACE}:" in text else 0
