"""A Spark standalone cluster on several hosts: the master and the drivers on the first, a worker on each other one.

with Hosts(folder, ("head", "one", "two")) as hosts, Standalone(hosts) as cluster:
    driver = cluster.drive(drivers.fit, cluster.place, arguments)
    driver.result()
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyspark

from tests.cluster.hosts import LONG, Host, Hosts, until
from tests.sessions import ROOT, command, session

LOST = 10
"""Seconds after which the master and the drivers give a silent host up; Spark's own values are one and two minutes."""

_SPARK = Path(pyspark.__file__).parent
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass(frozen=True)
class Place:
    """Where a driver runs; it travels to it as JSON.

    Attributes:
        master: the master's URL.
        address: the driver's, on the network of the executors.
        folder: for its files.
    """

    master: str
    address: str
    folder: str

    def session(self, size: int, **conf: str) -> contextlib.AbstractContextManager[Any]:
        """A session with ``size`` executors of one core each, which Spark spreads over the hosts that there are.

        Args:
            size: executors.
            conf: as for ``tests.sessions.session``.
        """
        settings = {
            "driver__host": self.address,
            "driver__bindAddress": self.address,
            "cores__max": str(size),
            "executor__cores": "1",
            "executor__memory": "1g",
            "network__timeout": f"{LOST}s",
            "network__timeoutInterval": "2s",
            "executor__heartbeatInterval": "2s",
            # A silent driver is given up after so many: by default after sixty, ten minutes and more.
            "executor__heartbeat__maxFailures": "5",
        }
        return session(self.folder, self.master, **settings | conf)


class Driver:
    """A function in a process of its own on a host.

    Attributes:
        pid: the process's.
    """

    def __init__(self, process: subprocess.Popen[bytes], out: Path) -> None:
        self.pid = process.pid
        self._process, self._out = process, out

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until something holds, as long as the driver runs."""

        def holds() -> Any:
            found = condition()
            assert found or self._process.poll() is None, f"the driver has ended before {what}\n{self.output}"
            return found

        return until(holds, f"{what}\n{self.output}")

    def result(self, timeout: float = 180.0) -> Any:
        """What the function returned, once the driver has ended."""
        code = self.wait(timeout)
        assert code == 0, f"the driver ended with {code}\n{self.output}"
        return json.loads(self.output.splitlines()[-1])

    def wait(self, timeout: float) -> int:
        """Its exit code, once it has ended; one that has not ended in time fails the test."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the driver hangs\n{self.output}") from None

    def kill(self) -> None:
        """SIGKILL for the driver, its JVM included; returns when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(LONG)

    @property
    def output(self) -> str:
        """What it has written so far."""
        return self._out.read_text(errors="replace")


class Standalone:
    """Master and workers, from the beginning of the block on; they end with the hosts.

    Args:
        hosts: the first is that of the master and the drivers, each other one has a worker.
        cores: of each worker.
    """

    def __init__(self, hosts: Hosts, *, cores: int = 2) -> None:
        self.hosts = hosts
        self.head, *self.workers = hosts
        self.shared = hosts.folder / "shared"  # at the same path on all hosts, and the same folder
        self._cores = cores
        self._serial = count()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._log = hosts.folder / "master.log"
        self._unplugged: set[str] = set()
        self._drivers: list[Driver] = []
        self._before: dict[str, set[tuple[str, int]]] = {}

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

    @property
    def place(self) -> Place:
        """Where a new driver runs."""
        folder = self.hosts.local / f"driver-{next(self._serial)}"
        return Place(self.url, self.head.address, str(folder))

    def drive(self, function: Callable[..., Any], *arguments: Any, timeout: float = 200.0) -> Driver:
        """Call a top-level function with a ``Place`` and the arguments, as a driver that is a process of its own.

        Args:
            function: what to call.
            arguments: its arguments after the first; they and what it returns travel as JSON.
            timeout: seconds after which a driver that hangs says where.
        """
        place = self.place
        return self.start(command(function, asdict(place), *arguments, timeout=timeout), place)

    def start(self, command: list[str], place: Place, **env: str) -> Driver:
        """Start a command on the first host."""
        (self.head.disk / Path(place.folder).name).mkdir()
        out = self.hosts.folder / f"{Path(place.folder).name}.log"
        driver = Driver(self.head.start(command, env=self._environment(self.head) | env, out=out), out)
        self._drivers.append(driver)
        return driver

    def end_drivers(self) -> None:
        """Kill the drivers that still run."""
        while self._drivers:
            self._drivers.pop().kill()

    def unplug(self, host: Host) -> None:
        """See ``Host.unplug``; ``heal`` will notice."""
        self._unplugged.add(host.name)
        host.unplug()

    def heal(self) -> None:
        """Make good again what was done to the hosts: cables, workers."""
        broken = [host for host in self.workers if host.name in self._unplugged or not self._works(host)]
        for host in broken:
            host.plug_in()
            host.kill()  # with the cable in place, so that the master is told
            self._start_worker(host)
        self._unplugged.clear()
        for host in broken:
            until(lambda host=host: self._registered(host), f"a worker of {host.name}'s in {self._log}")
            self._before[host.name] = host.listening()

    def left(self, host: Host) -> list[str]:
        """What is on a worker's host besides its daemon: processes, sockets that listen, files of rows."""
        daemon = self._daemons[host.name].pid
        processes = [f"process {pid}: {_command(pid)}" for pid in host.processes() if pid != daemon]
        sockets = [f"listening on {found}" for found in host.listening() - self._before[host.name]]
        # Spark's own files are in folders of folders there.
        files = [path for path in (host.disk / "spark").rglob("*") if path.is_file()]
        named = [str(path) for path in files if path.parent.name.startswith("blockmgr-") or path.name.startswith("tmp")]
        return [*processes, *sockets, *named]

    def nothing_left(self) -> None:
        """Wait until there is nothing on any host besides its daemon; what stays is named."""
        for host in self.workers:
            with contextlib.suppress(TimeoutError):
                until(lambda host=host: not self.left(host), "nothing left", timeout=3 * LOST)
        left = {host.name: found for host in self.workers if (found := self.left(host))}
        assert not left, left

    def daemon(self, host: Host) -> int:
        """The pid of the worker on a host."""
        return self._daemons[host.name].pid

    def _works(self, host: Host) -> bool:
        return host.name in self._daemons and self._daemons[host.name].poll() is None

    def _start_worker(self, host: Host) -> None:
        # No port of the web interface is given: it is 0 as well.
        worker = ["org.apache.spark.deploy.worker.Worker", "--host", host.address, "--port", "0"]
        size = ["--cores", str(self._cores), "--memory", "4g", "--work-dir", str(self.hosts.local / "work")]
        log = self.hosts.folder / f"{host.name}.log"
        self._daemons[host.name] = self._start(host, *worker, *size, self.url, log=log)

    def _start(self, host: Host, *daemon: str, log: Path) -> subprocess.Popen[bytes]:
        (host.disk / "spark").mkdir(exist_ok=True)
        program = [str(_SPARK / "bin" / "spark-class"), daemon[0], "--webui-port", "0", *daemon[1:]]
        return host.start(program, env=self._environment(host), out=log)

    def _url(self) -> str | None:
        found = re.search(r"Starting Spark master at (spark://\S+)", self._log.read_text())
        return None if found is None else found[1]

    def _registered(self, host: Host) -> bool:
        """Whether the master's last word on a host is that it has come."""
        said = re.findall(rf"(Registering|Removing) worker (?:\S+ on )?{host.address}:\d+", self._log.read_text())
        return bool(said) and said[-1] == "Registering"

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
        return Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    except (FileNotFoundError, ProcessLookupError):
        return "has just ended"
