"""The addresses that workers of a gang would use, and TCP connections between them.

One worker of each address listens, and connects to those of all other addresses. Then it measures the link to the
next one.
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

from sparkdl.cli.doctor.check_result import CheckResult, check_result, listed
from sparkdl.cli.doctor.link import LinkSpeed, answer_measurements, measure
from sparkdl.errors import InvalidInput, PeerLost
from sparkdl.net.addresses import interface_of, listen, worker_address
from sparkdl.net.protocol import Endpoint
from sparkdl.spark.rendezvous import DriverAllGather, Rendezvous

CONNECT = 5.0
"""Seconds until a connection fails."""
_AT_ONCE = 64  # connections

REACHABLE = (
    "Open all ports between the executors' hosts, or name the interface whose network connects them in "
    "spark.sparkdl.network."
)
FLOWING = (
    "The hosts connect, but no data flows: compare the MTU of their interfaces, and look for firewalls that end "
    "connections."
)
ABSENT = "Look for executors that hang on the other hosts, and for jobs that hold task slots."
INTERFACE = "Set spark.sparkdl.network to an interface that connects the hosts and that every host has, or unset it."


@dataclass(frozen=True)
class WorkerAddress:
    """The host of a worker and the address that others dial, or the error if there is no such address."""

    host: str
    address: str = ""
    interface: str = ""
    port: int = 0
    error: str = ""

    def __str__(self) -> str:
        return f"{self.host} ({self.address}, {self.interface or 'no interface'})"

    @property
    def loopback(self) -> bool:
        """Whether only this host reaches the address."""
        return bool(self.address) and ip_address(self.address).is_loopback


@dataclass(frozen=True)
class ConnectionReport:
    """The report of a worker: its address, an error for each rank that it cannot reach, and the link to the next."""

    worker: WorkerAddress
    errors: Mapping[int, str] = field(default_factory=dict)
    link: LinkSpeed | None = None


@dataclass(frozen=True)
class ConnectionTask:
    """The only task of a barrier stage; there is one such stage per slot."""

    rank: int
    size: int  # workers
    peers: tuple[str, ...]  # the cluster's addresses of all executors
    network: str | None  # as ``spark.sparkdl.network``
    begin: Endpoint  # of the driver, where workers gather their addresses
    end: Endpoint  # of the driver, where workers wait for each other
    timeout: float  # seconds until a wait for the other workers ends

    def run(self, rows: Iterable[Any]) -> Iterator[tuple[int, ConnectionReport]]:
        """Yield the rank and the report of this worker."""
        deque(rows, maxlen=0)
        with ExitStack() as stack:
            worker = self._listening(stack)
            workers = [WorkerAddress(**json.loads(line)) for line in self._meet(self.begin, json.dumps(vars(worker)))]
            errors = connect(workers, self.rank)
            link = None if errors else measure_next(workers, self.rank)
            self._meet(self.end, "connected")  # until all have connected
        yield self.rank, ConnectionReport(worker, errors, link)

    def _meet(self, endpoint: Endpoint, line: str) -> Sequence[str]:
        return Rendezvous(DriverAllGather(endpoint, self.rank, self.size, absent), self.timeout)(line)

    def _listening(self, stack: ExitStack) -> WorkerAddress:
        host, (task,) = socket.gethostname(), BarrierTaskContext.get().getTaskInfos()
        try:
            address = worker_address(0, [task.address, *self.peers], override=self.network)
            listening = stack.enter_context(listen(address))
            stack.enter_context(answer_measurements(listening))
        except InvalidInput as error:
            return WorkerAddress(host, error=error.message)
        except OSError as error:
            return WorkerAddress(host, error=f"cannot listen on its address: {error}")
        return WorkerAddress(host, address, interface_of(address) or "", listening.getsockname()[1])


def absent(line: str) -> Sequence[str]:
    """Raise PeerLost, since some workers did not reach the driver."""
    raise PeerLost("some workers did not reach the driver in time")


def representatives(workers: Sequence[WorkerAddress]) -> list[int]:
    """The first rank of each host and address; workers without an address have none."""
    first: dict[tuple[str, str], int] = {}
    for rank, worker in enumerate(workers):
        if not worker.error:
            first.setdefault((worker.host, worker.address), rank)
    return [*first.values()]


def connect(workers: Sequence[WorkerAddress], rank: int, seconds: float = CONNECT) -> dict[int, str]:
    """Connect to the representatives of the other addresses, and return the error of each that cannot be reached."""
    ranks = representatives(workers)
    peers = [peer for peer in ranks if peer != rank] if rank in ranks else []
    if not peers:
        return {}

    def error(peer: int) -> str:
        try:
            socket.create_connection((workers[peer].address, workers[peer].port), seconds).close()
        except TimeoutError:
            return f"no answer within {seconds:g} s"
        except OSError as error:
            return error.strerror or str(error)
        return ""

    with ThreadPoolExecutor(min(len(peers), _AT_ONCE)) as pool:
        return {peer: text for peer, text in zip(peers, pool.map(error, peers), strict=True) if text}


def measure_next(workers: Sequence[WorkerAddress], rank: int) -> LinkSpeed | None:
    """Measure the link to the representative of the next address; None if there is no other one, or for other ranks."""
    ranks = representatives(workers)
    if rank not in ranks or len(ranks) == 1:
        return None
    following = ranks[(ranks.index(rank) + 1) % len(ranks)]
    return measure(following, workers[following].address, workers[following].port)


def interface_check(workers: Sequence[WorkerAddress]) -> CheckResult:
    """Whether every worker has an address that other hosts can dial."""
    several = len({worker.host for worker in workers}) > 1
    findings = [f"{worker.host}: {worker.error.rstrip('.')}" for worker in workers if worker.error]
    if several:
        findings += [f"{worker}: other hosts cannot reach a loopback address" for worker in workers if worker.loopback]
    used = [str(worker) for worker in workers]
    return check_result("interface", findings, INTERFACE, otherwise=f"a gang uses {listed(used)}")


def connections_check(reports: Sequence[ConnectionReport]) -> CheckResult:
    """Whether all hosts can connect to each other."""
    workers = [report.worker for report in reports]
    ranks = representatives(workers)
    findings = [
        f"{report.worker} cannot connect to {workers[peer]}: {error}"
        for report in reports
        for peer, error in report.errors.items()
    ]
    lacking = [worker.host for worker in workers if worker.error]
    if lacking and not findings:
        return CheckResult("connections", "skip", f"not all hosts have an address: {listed(lacking)}")
    hosts, pairs = len({worker.host for worker in workers}), len(ranks) * (len(ranks) - 1)
    connected = f"all {pairs} connections between {hosts} hosts" if pairs else "all workers are on one host"
    return check_result("connections", findings, REACHABLE, otherwise=connected)


def link_check(reports: Sequence[ConnectionReport]) -> CheckResult:
    """The slowest link between hosts, as arguments of ``sparkdl plan``."""
    workers = [report.worker for report in reports]
    if any(report.errors for report in reports) or any(worker.error for worker in workers):
        return CheckResult("link", "skip", "not all hosts can connect to each other")
    links = [(report.worker, report.link) for report in reports if report.link]
    findings = [f"{worker} to {workers[link.rank]}: {link.error}" for worker, link in links if link.error]
    if findings or not links:
        return check_result("link", findings, FLOWING, otherwise="all workers are on one host")
    worker, slowest = min(links, key=lambda link: link[1].bandwidth)
    latency = max(link.latency for _, link in links)
    text = f"the slowest of {len(links)} links is from {worker} to {workers[slowest.rank]}"
    rounded = float(f"{slowest.bandwidth:.3g}")
    return CheckResult("link", "ok", f"{text}; sparkdl plan --bandwidth {rounded:g} --latency {latency:.2g}")


def absent_check(workers: Sequence[WorkerAddress], size: int, errors: Sequence[str]) -> CheckResult:
    """The failure of a check of interfaces in which only the workers of ``workers`` reached the driver."""
    hosts = ", ".join(dict.fromkeys(worker.host for worker in workers)) or "no host"
    text = f"{len(workers)} of {size} workers reached the driver, from {hosts}"
    return check_result("interface", [text, *errors], ABSENT, otherwise="")
