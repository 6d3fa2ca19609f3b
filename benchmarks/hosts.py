"""Several hosts on one machine: each is a network namespace with its own host name, address and local disk.

    with Hosts(folder, ("head", "one", "two")) as hosts:
        process = hosts["one"].start(["ping", "-c", "1", hosts["two"].address])
        hosts["two"].unplug()  # from now on nothing reaches it, and no connection is closed

A bridge in a namespace of its own connects the hosts, so this machine's network is not touched and two blocks at a time
do not see each other. A process of a host has its own mount namespace: ``hosts.local`` is another folder on every host,
and in ``/etc/hosts`` a host's own name is loopback, as on Debian. All else on the disk is shared.

It needs root on Linux, iproute2 and util-linux. The next block removes what a killed process left.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any

import psutil

LONG = 180.0
"""Seconds after which an expected event did not happen."""

_NAMESPACES = Path("/run/netns")
_NAME = re.compile(r"sparkdl-(\d+)-\d+-\w+")
_TOOLS = ("ip", "ss", "nsenter", "unshare", "setpriv", "mount", "hostname")
_NOBODY = "02:00:00:00:00:99"  # a hardware address that no host has
_serial = count()

# The process's name for itself, its local disk and who is who; then the command takes the shell's place.
_ENTER = """
hostname "$0" && mount --bind "$1" "$2" && mount --bind "$3" /etc/hosts && shift 3 && exec "$@"
"""


def missing() -> str | None:
    """Why this machine cannot have such hosts; None if it can."""
    if lacking := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"there is no {', '.join(lacking)}: install iproute2 and util-linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        _run("unshare", "--net", "--mount", "--uts", "true")
    except OSError as error:
        return f"no namespace can be made: {error}"
    return None


def until(condition: Callable[[], Any], what: str, *, timeout: float = LONG) -> Any:
    """Wait until something holds, and return it; after ``timeout`` seconds raise ``TimeoutError``."""
    ends = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > ends:
            raise TimeoutError(f"after {timeout:.0f} s still not: {what}")
        time.sleep(0.05)
    return value


@dataclass(frozen=True)
class Host:
    """One of the hosts."""

    name: str
    address: str
    namespace: str  # of its network
    switch: str  # the namespace of the bridge
    disk: Path  # the folder that its processes find at ``local``
    local: Path
    names: Path  # the file that its processes find at ``/etc/hosts``

    def start(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        out: Path | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """Start a process on this host, in a session of its own; it does not outlive this process.

        It has entered the host when this returns: ``kill`` finds it.
        """
        enter = ["nsenter", f"--net={_NAMESPACES / self.namespace}", "unshare", "--mount", "--uts"]
        place = ["sh", "-c", _ENTER, self.name, self.disk, self.local, self.names]
        with contextlib.ExitStack() as files:
            output: IO[bytes] | int = subprocess.DEVNULL if out is None else files.enter_context(out.open("ab"))
            process = subprocess.Popen(
                [*enter, "setpriv", "--pdeathsig", "KILL", *place, *command],
                env=env,
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until(lambda: process.poll() is not None or process.pid in self.processes(), f"{self.name} has its process")
        return process

    def unplug(self) -> None:
        """Pull the cable: packets are lost and no connection is closed."""
        _ip("-n", self.switch, "link", "set", self.name, "down")

    def plug_in(self) -> None:
        """Put the cable back."""
        _ip("-n", self.switch, "link", "set", self.name, "up")

    def drop_packets_to(self, other: Host) -> None:
        """From now on packets to another host are lost, silently; those to all others arrive."""
        neighbor = ("neighbor", "replace", other.address, "lladdr", _NOBODY, "nud", "permanent", "dev", "eth0")
        _ip("-n", self.namespace, *neighbor)

    def send_packets_to(self, other: Host) -> None:
        """Undo ``drop_packets_to``."""
        _ip("-n", self.namespace, "neighbor", "delete", other.address, "dev", "eth0")

    def fill_disk(self, process: int, folder: Path) -> None:
        """Let a process and its children find a full disk at ``folder``."""
        enter = ("nsenter", f"--mount=/proc/{process}/ns/mnt")
        _run(*enter, "mount", "-t", "tmpfs", "-o", "size=64k", "full", folder)
        _run(*enter, "sh", "-c", 'head -c 65536 /dev/zero > "$0/full"', folder)

    def empty_disk(self, process: int, folder: Path) -> None:
        """Undo ``fill_disk``."""
        _run("nsenter", f"--mount=/proc/{process}/ns/mnt", "umount", folder)

    def processes(self) -> list[int]:
        return _processes(self.namespace)

    def kill(self) -> None:
        """SIGKILL for every process of this host; returns when all have ended."""
        _kill(self.namespace)

    def sockets(self, *options: str) -> list[list[str]]:
        """The TCP sockets of this host, as ``ss`` lists them: the fourth word is the own address and port."""
        lines = _run("nsenter", f"--net={_NAMESPACES / self.namespace}", "ss", "-Htn", *options)
        return [line.split() for line in lines.splitlines()]


class Hosts:
    """Hosts with local disks in a new folder; the end of the block kills all their processes."""

    def __init__(self, folder: str | os.PathLike[str], names: Sequence[str]) -> None:
        self.folder = Path(folder).resolve()
        self.local = self.folder / "local"
        self._prefix = f"sparkdl-{os.getpid()}-{next(_serial)}"
        self._switch = f"{self._prefix}-switch"
        self._hosts = {name: self._plan(number, name) for number, name in enumerate(names, start=1)}

    def _plan(self, number: int, name: str) -> Host:
        namespace, disk, names = f"{self._prefix}-{name}", self.folder / name, self.folder / f"{name}.hosts"
        return Host(name, f"10.77.0.{number}", namespace, self._switch, disk, self.local, names)

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def __iter__(self) -> Any:
        return iter(self._hosts.values())

    def __enter__(self) -> Hosts:
        remove_stale()
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in _names():
            if name.startswith(f"{self._prefix}-"):
                _remove(name)

    def _build(self) -> None:
        self.local.mkdir(parents=True)
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for host in self:
            host.disk.mkdir()
            others = [f"{other.address} {other.name}" for other in self if other is not host]
            host.names.write_text("\n".join(["127.0.0.1 localhost", f"127.0.1.1 {host.name}", *others, ""]))
            _ip("netns", "add", host.namespace)
            _ip("-n", host.namespace, "link", "set", "lo", "up")
            pair = ("type", "veth", "peer", "name", "eth0", "netns", host.namespace)
            _ip("-n", self._switch, "link", "add", host.name, *pair)
            _ip("-n", self._switch, "link", "set", host.name, "master", "bridge", "up")
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.namespace, "link", "set", "eth0", "up")


def remove_stale() -> None:
    """Remove the namespaces of processes that have ended."""
    for name in _names():
        if (match := _NAME.fullmatch(name)) and not Path("/proc", match[1]).exists():
            _remove(name)


def _names() -> list[str]:
    return sorted(path.name for path in _NAMESPACES.glob("sparkdl-*"))


def _remove(namespace: str) -> None:
    _kill(namespace)
    _ip("netns", "delete", namespace)  # and with it the ends of its cables, and so the cables


def _kill(namespace: str) -> None:
    def gone() -> bool:
        for pid in (pids := _processes(namespace)):
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        return not pids

    until(gone, f"the end of all processes in {namespace}")


def _processes(namespace: str) -> list[int]:
    """Like ``ip netns pids``, but without a process: tests ask often."""
    network = (_NAMESPACES / namespace).stat()
    return [pid for pid in psutil.pids() if _is_in(pid, network) and not ended(pid)]


def _is_in(pid: int, network: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/ns/net"), network)
    except OSError:  # it has ended, or is none of this user's
        return False


def ended(pid: int) -> bool:
    """Whether a process has ended, waited for or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str | os.PathLike[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout
