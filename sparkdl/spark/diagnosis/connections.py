"""The addresses that workers of a gang would use, and TCP connections between them.

One worker of each address listens, and connects to those of all other addresses. No data is sent.
"""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from pyspark import BarrierTaskContext

from sparkdl.cluster.group.network import interface_of, listen, worker_address
from sparkdl.errors import InvalidInput, PeerLost
from sparkdl.spark.address_exchange import DriverExchange, Rendezvous
from sparkdl.spark.diagnosis.check import Check, judged, listed
from sparkdl.telemetry.protocol import Endpoint

CONNECT = 5.0
"""Seconds until a connection fails."""
_AT_ONCE = 64  # connections

REACHABLE = (
    "Open all ports between the executors' hosts, or name the interface whose network connects them in "
    "spark.sparkdl.network."
)
ABSENT = "Look for executors that hang on the other hosts, and for jobs that hold task slots."
INTERFACE = "Set spark.sparkdl.network to an interface that connects the hosts and that every host has, or unset it."


@dataclass(frozen=True)
class Place:
    """The place of a worker: its host, and the address that others dial, or the error of finding one."""

    host: str
    address: str = ""
    interface: str = ""
    port: int = 0
    trouble: str = ""

    def __str__(self) -> str:
        return f"{self.host} ({self.address}, {self.interface or 'no interface'})"

    @property
    def loopback(self) -> bool:
        """Whether only this host reaches the address."""
        return bool(self.address) and ip_address(self.address).is_loopback


@dataclass(frozen=True)
class Connected:
    """The report of a worker: its place, and for each rank that it could not connect to the error."""

    place: Place
    errors: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ConnectionTask:
    """The only task of a barrier stage; there is one such stage per slot."""

    rank: int
    size: int  # workers
    peers: tuple[str, ...]  # the cluster's addresses of all executors
    network: str | None  # as ``spark.sparkdl.network``
    begin: Endpoint  # of the driver, where workers exchange their places
    end: Endpoint  # of the driver, where workers wait for each other
    timeout: float  # seconds until a wait for the other workers ends

    def run(self, rows: Iterable[Any]) -> Iterator[tuple[int, Connected]]:
        """Yield the rank and the report of this worker."""
        deque(rows, maxlen=0)
        with ExitStack() as stack:
            place = self._listening(stack)
            places = [Place(**json.loads(line)) for line in self._exchange(self.begin, json.dumps(vars(place)))]
            errors = connect(places, self.rank)
            self._exchange(self.end, "connected")  # until all have connected
        yield self.rank, Connected(place, errors)

    def _exchange(self, endpoint: Endpoint, line: str) -> Sequence[str]:
        return Rendezvous(DriverExchange(endpoint, self.rank, self.size, absent), self.timeout)(line)

    def _listening(self, stack: ExitStack) -> Place:
        host, (task,) = socket.gethostname(), BarrierTaskContext.get().getTaskInfos()
        try:
            address = worker_address(0, [task.address, *self.peers], override=self.network)
            listening = stack.enter_context(listen(address))
        except InvalidInput as error:
            return Place(host, trouble=error.message)
        except OSError as error:
            return Place(host, trouble=f"cannot listen on its address: {error}")
        return Place(host, address, interface_of(address) or "", listening.getsockname()[1])


def absent(line: str) -> Sequence[str]:
    """Raise PeerLost, since some workers did not reach the driver."""
    raise PeerLost("some workers did not reach the driver in time")


def representatives(places: Sequence[Place]) -> list[int]:
    """The first rank of each host and address; workers without an address have none."""
    first: dict[tuple[str, str], int] = {}
    for rank, place in enumerate(places):
        if not place.trouble:
            first.setdefault((place.host, place.address), rank)
    return [*first.values()]


def connect(places: Sequence[Place], rank: int, seconds: float = CONNECT) -> dict[int, str]:
    """Connect to the representatives of the other addresses, and return the error of each that cannot be reached."""
    ranks = representatives(places)
    others = [other for other in ranks if other != rank] if rank in ranks else []
    if not others:
        return {}

    def error(other: int) -> str:
        try:
            socket.create_connection((places[other].address, places[other].port), seconds).close()
        except TimeoutError:
            return f"no answer within {seconds:g} s"
        except OSError as error:
            return error.strerror or str(error)
        return ""

    with ThreadPoolExecutor(min(len(others), _AT_ONCE)) as pool:
        return {other: text for other, text in zip(others, pool.map(error, others), strict=True) if text}


def interface_check(places: Sequence[Place]) -> Check:
    """Whether every worker has an address that other hosts can dial."""
    several = len({place.host for place in places}) > 1
    findings = [f"{place.host}: {place.trouble.rstrip('.')}" for place in places if place.trouble]
    if several:
        findings += [f"{place}: other hosts cannot reach a loopback address" for place in places if place.loopback]
    used = [str(place) for place in places]
    return judged("interface", unique(findings), INTERFACE, otherwise=f"a gang uses {listed(unique(used))}")


def connections_check(reports: Sequence[Connected]) -> Check:
    """Whether all hosts can connect to each other."""
    places = [report.place for report in reports]
    ranks = representatives(places)
    findings = [
        f"{report.place} cannot connect to {places[other]}: {error}"
        for report in reports
        for other, error in report.errors.items()
    ]
    lacking = unique(place.host for place in places if place.trouble)
    if lacking and not findings:
        return Check("connections", "skip", f"not all hosts have an address: {listed(lacking)}")
    hosts, pairs = len({place.host for place in places}), len(ranks) * (len(ranks) - 1)
    connected = f"all {pairs} connections between {hosts} hosts" if pairs else "all workers are on one host"
    return judged("connections", findings, REACHABLE, otherwise=connected)


def absent_check(places: Sequence[Place], size: int, errors: Sequence[str]) -> Check:
    """The failure of a check of interfaces in which only the workers of ``places`` reached the driver."""
    hosts = ", ".join(unique(place.host for place in places)) or "no host"
    text = f"{len(places)} of {size} workers reached the driver, from {hosts}"
    return judged("interface", [text, *unique(errors)], ABSENT, otherwise="")


def unique(texts: Iterable[str]) -> list[str]:
    """The texts in order, without repeats."""
    return [*dict.fromkeys(texts)]
