"""The hosts themselves: names, disks, cables, and that nothing is left of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.hosts import LONG, Hosts, remove_stale, until

pytestmark = [pytest.mark.usefixtures("namespaces"), pytest.mark.chaos]

LISTEN = """
import socket, sys
server = socket.create_server((sys.argv[1], 0))
print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(socket.gethostname().encode())
    connection.close()
"""
DIAL = "import socket, sys; print(socket.create_connection((sys.argv[1], int(sys.argv[2])), 2).recv(100).decode())"
BUILD = """
import os, signal, sys
from tests.hosts.hosts import Hosts
Hosts(sys.argv[1], ("one", "two")).__enter__()
os.kill(os.getpid(), signal.SIGKILL)
"""


def run(host, *command, out):
    out.unlink(missing_ok=True)
    code = host.start(command, out=out).wait(LONG)
    return code, out.read_text().split()


def test_hosts_have_names_disks_and_cables(tmp_path):
    with Hosts(tmp_path / "hosts", ("one", "two")) as pair:
        one, two = pair
        for host, other in ((one, two), (two, one)):
            script = f"hostname; echo $0 > {pair.local}/file; getent hosts {host.name} {other.name}"
            names = [host.name, "127.0.1.1", host.name, other.address, other.name]
            assert run(host, "sh", "-c", script, host.name, out=tmp_path / "out") == (0, names)
        assert [(host.disk / "file").read_text().strip() for host in pair] == ["one", "two"]
        assert list(pair.local.iterdir()) == []

        before = one.listening()
        server = one.start([sys.executable, "-c", LISTEN, one.address], out=tmp_path / "port")
        port = until(lambda: (tmp_path / "port").read_text().strip(), "a port")
        assert {found for _, found in one.listening() - before} == {int(port)}
        assert two.listening() == before
        dial = [sys.executable, "-c", DIAL, one.address, port]
        assert run(two, *dial, out=tmp_path / "out") == (0, ["one"])
        one.unplug()
        code, words = run(two, *dial, out=tmp_path / "out")
        assert (code, words[-3:]) == (1, ["TimeoutError:", "timed", "out"])
        one.plug_in()
        assert run(two, *dial, out=tmp_path / "out") == (0, ["one"])

        killed = subprocess.Popen([sys.executable, "-c", BUILD, tmp_path / "left"])
        assert killed.wait(LONG) == -9
        assert remove_stale() == [f"sparkdl-{killed.pid}-0-{name}" for name in ("one", "switch", "two")]
        assert run(one, "hostname", out=tmp_path / "out") == (0, ["one"])
    assert server.wait(LONG) == -9
    assert not any(Path("/run/netns", host.namespace).exists() for host in pair)
