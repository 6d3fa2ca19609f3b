"""A Spark standalone cluster on several hosts: the master and the driver on the first, a worker on each other one.

with Hosts(folder, ("head", "one", "two")) as hosts, Standalone(hosts) as cluster:
    value = cluster.driver().call(drivers.fit, arguments).result()
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import psutil
import pyspark

from benchmarks.hosts import Host, Hosts, until
from tests.hosts.driving import LOST, Driver, serve, settle
from tests.sessions import ROOT, command

_SPARK = Path(pyspark.__file__).parent
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CORES = 2
"""Of an executor."""


class Standalone:
    """Master and workers during the block.

    A worker offers twice the cores of an executor, so that it has room for the executor of another host.
    """

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.head, *self.workers = hosts  # the host of the master and the driver, and a host for each worker
        self.shared = hosts.folder / "shared"  # by all hosts
        self.url = ""
        self._serial = count()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._log = hosts.folder / "master.log"
        self._unplugged: set[str] = set()
        self._driver: Driver | None = None
        self._settings: dict[str, str] = {}
        self._before: dict[str, set[str]] = {}

    def __enter__(self) -> Standalone:
        self.shared.mkdir()
        master = ["org.apache.spark.deploy.master.Master", "--host", self.head.address, "--port", "0"]
        self._daemons[self.head.name] = self._start(self.head, *master, log=self._log)
        self.url = until(self._url, f"a master in {self._log}")
        self.heal()
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            host.kill()

    # ---- the driver --------------------------------------------------------------------------------------------------

    def driver(self, *, settled: bool = True, **settings: str) -> Driver:
        """The idle driver with these settings, or a new one; ``settled`` waits for an executor on each host."""
        if self._driver is None or not self._driver.idle or self._settings != settings:
            self._give_up_driver()
            self._driver, self._settings = self._start_driver(settings), settings
            if settled:
                self._settle()
        return self._driver

    def end_driver(self) -> None:
        """End the driver, which leaves nothing on any host."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.end()
        self.nothing_left()

    def _start_driver(self, settings: dict[str, str]) -> Driver:
        name = f"driver-{next(self._serial)}"
        (self.head.disk / name).mkdir()
        folder, out = self.hosts.local / name, self.hosts.folder / f"{name}.log"
        arguments = self.url, self.head.address, folder, len(self.workers), CORES, settings
        line = command(serve, *arguments, timeout=3600.0)
        process = self.head.start(line, env=self._environment(self.head), out=out, stdin=subprocess.PIPE)
        return Driver(process, out)

    def _give_up_driver(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.kill()

    def _settle(self) -> None:
        """Wait for an executor on each host. Spark moves none, but a new one goes where most room is."""
        until(lambda: len(self._executors()) == len(self.workers), f"as many executors as hosts in {self._log}")
        for host in self.workers:
            for pid in self._executors(host)[1:]:
                os.kill(pid, signal.SIGKILL)
        assert self._driver is not None
        self._driver.call(settle, [host.address for host in self.workers]).result()

    def _executors(self, *hosts: Host) -> list[int]:
        pids = [pid for host in hosts or self.workers for pid in host.processes()]
        return [pid for pid in pids if "CoarseGrainedExecutorBackend" in _command(pid)]

    # ---- the hosts ---------------------------------------------------------------------------------------------------

    def unplug(self, host: Host) -> None:
        self._unplugged.add(host.name)
        host.unplug()

    def heal(self) -> None:
        """Repair the cluster: cables, workers, executors that had to move, a driver that hangs."""
        broken = [host for host in self.workers if host.name in self._unplugged or not self._works(host)]
        before = {host.name: self._registered(host) for host in broken}
        for host in broken:
            host.plug_in()
            host.kill()  # with the cable in place, so that the master is told
            self._unplugged.discard(host.name)
            self._start_worker(host)
        for host in broken:
            until(lambda host=host: self._renewed(host, before[host.name]), f"{host.name}'s worker in {self._log}")
            self._before[host.name] = _listening(host)
        if self._driver is not None and not self._driver.idle:
            self._give_up_driver()
        if self._driver is not None:
            self._settle()

    def executor(self, host: Host) -> int:
        """The pid of the executor on a host."""
        (pid,) = self._executors(host)
        return pid

    def end_python(self, host: Host) -> None:
        """End the Python workers on a host, without the knowledge of its executor."""
        for pid in host.processes():
            if "pyspark" in _command(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        until(lambda: not any("pyspark" in _command(pid) for pid in host.processes()), "no Python worker")

    def daemon(self, host: Host) -> int:
        """The pid of the worker on a host."""
        return self._daemons[host.name].pid

    def nothing_left(self, *hosts: Host) -> None:
        """Wait until some or all workers' hosts have nothing but their daemons; the error names the rest."""
        self._wait_for_none(self._left, hosts)

    def gang_gone(self) -> None:
        """Wait until executors on all hosts have nothing of a gang; the error names the rest."""
        self._wait_for_none(self._left_by_gang, ())

    def _wait_for_none(self, find: Callable[[Host], list[str]], hosts: tuple[Host, ...]) -> None:
        left: dict[str, list[str]] = {}

        def none() -> bool:
            # A worker may still start an ``rm`` after a moment in which there was nothing: the last look counts.
            left.clear()
            left.update({host.name: found for host in hosts or self.workers if (found := find(host))})
            return not left

        with contextlib.suppress(TimeoutError):
            until(none, "nothing left", timeout=4 * LOST)
        assert not left, left

    def _left(self, host: Host) -> list[str]:
        """Processes, or else listening sockets and files, on a worker's host, without its daemon's."""
        daemon = self.daemon(host)
        if processes := [f"process {pid}: {_command(pid)}" for pid in host.processes() if pid != daemon]:
            return processes  # the rest is theirs
        sockets = [f"listening on {found}" for found in _listening(host) - self._before[host.name]]
        return [*sockets, *self._files(host, "blockmgr-")]

    def _left_by_gang(self, host: Host) -> list[str]:
        """What a gang leaves in Python workers that continue: a lasting stop, sockets of the network, files of rows."""
        network = [line for line in host.sockets("-ap") if not line[3].startswith(("127.", "[::1]", "[::ffff:127."))]
        processes = []
        for pid in host.processes():
            if "pyspark" in _command(pid):
                sockets = [line[3] for line in network if f"pid={pid}," in line[-1]]
                with contextlib.suppress(psutil.NoSuchProcess):
                    if sockets or psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                        processes.append(f"process {pid}: {_command(pid)}: {sockets}")
        return [*processes, *self._files(host)]

    def _files(self, host: Host, *folders: str) -> list[str]:
        """Files of rows, and those in Spark's own folders whose names begin so."""
        # Unlike rglob, walk does not mind that Spark deletes folders meanwhile.
        files = [Path(folder, name) for folder, _, names in os.walk(host.disk / "spark") for name in names]
        return [str(path) for path in files if path.name.startswith("tmp") or path.parent.name.startswith(folders)]

    def _works(self, host: Host) -> bool:
        return host.name in self._daemons and self._daemons[host.name].poll() is None

    def _registered(self, host: Host) -> set[str]:
        """The ports of a host's workers that the master knows."""
        known = set()
        line = rf"(Registering|Removing) worker (?:\S+ on )?{host.address}:(\d+)"
        for what, port in re.findall(line, self._log.read_text()):
            (known.add if what == "Registering" else known.discard)(port)
        return known

    def _renewed(self, host: Host, before: set[str]) -> bool:
        """Whether the master knows a new worker and has forgotten the others."""
        known = self._registered(host)
        return len(known) == 1 and not known & before

    # ---- the daemons -------------------------------------------------------------------------------------------------

    def _start_worker(self, host: Host) -> None:
        worker = ["org.apache.spark.deploy.worker.Worker", "--host", host.address, "--port", "0"]
        size = ["--cores", str(2 * CORES), "--memory", "4g", "--work-dir", str(self.hosts.local / "work")]
        log = self.hosts.folder / f"{host.name}.log"
        self._daemons[host.name] = self._start(host, *worker, *size, self.url, log=log)

    def _start(self, host: Host, *daemon: str, log: Path) -> subprocess.Popen[bytes]:
        (host.disk / "spark").mkdir(exist_ok=True)
        program = [str(_SPARK / "bin" / "spark-class"), daemon[0], "--webui-port", "0", *daemon[1:]]
        return host.start(program, env=self._environment(host), out=log)

    def _url(self) -> str | None:
        match = re.search(r"Starting Spark master at (spark://\S+)", self._log.read_text())
        return None if match is None else match[1]

    def _environment(self, host: Host) -> dict[str, str]:
        foreign = {name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_"))}
        return {name: value for name, value in os.environ.items() if name not in foreign} | {
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_HOME": str(_SPARK),
            "SPARK_LOCAL_IP": host.address,
            "SPARK_LOCAL_DIRS": str(self.hosts.local / "spark"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{_JAVA} -Dspark.worker.timeout={LOST} -Dspark.master.rest.enabled=false",
        }


def _command(pid: int) -> str:
    try:
        return re.sub(r"(?<=-cp )\S+|--add-opens=\S+ ", "", " ".join(psutil.Process(pid).cmdline()))
    except psutil.NoSuchProcess:
        return "has just ended"


def _listening(host: Host) -> set[str]:
    return {line[3] for line in host.sockets("-l")}
