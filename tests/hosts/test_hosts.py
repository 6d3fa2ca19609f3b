"""The hosts themselves: who sees whom and what, and that nothing is left of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts import hosts as module
from tests.hosts.hosts import LONG, Host, Hosts, remove_stale, until

pytestmark = pytest.mark.usefixtures("namespaces")

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


@pytest.fixture
def pair(tmp_path):
    with Hosts(tmp_path / "hosts", ("one", "two")) as found:
        yield found


def run(host: Host, *command: str, out: Path) -> tuple[int, str]:
    out.unlink(missing_ok=True)
    code = host.start(command, out=out).wait(LONG)
    return code, out.read_text().strip()


def test_hosts_have_names_addresses_and_disks_of_their_own(pair, tmp_path):
    for host, other in (("one", "two"), ("two", "one")):
        script = f"hostname; echo $0 > {pair.local}/file; getent hosts {host} {other}"
        code, said = run(pair[host], "sh", "-c", script, host, out=tmp_path / "out")
        assert code == 0
        assert said.split() == [host, "127.0.1.1", host, pair[other].address, other]
    assert [(host.disk / "file").read_text().strip() for host in pair] == ["one", "two"]
    assert list(pair.local.iterdir()) == []


@pytest.mark.chaos
def test_a_cable_is_pulled_and_put_back(pair, tmp_path):
    one, two = pair
    before = one.listening()
    server = one.start([sys.executable, "-c", LISTEN, one.address], out=tmp_path / "port")
    port = until(lambda: (tmp_path / "port").read_text().strip(), "a port")
    assert {found for _, found in one.listening() - before} == {int(port)}
    assert two.listening() == before
    dial = [sys.executable, "-c", DIAL, one.address, port]
    assert run(two, *dial, out=tmp_path / "out") == (0, "one")
    one.unplug()
    code, said = run(two, *dial, out=tmp_path / "out")
    assert (code, said.splitlines()[-1]) == (1, "TimeoutError: timed out")
    one.plug_in()
    assert run(two, *dial, out=tmp_path / "out") == (0, "one")
    one.kill()
    assert server.wait(LONG) == -9
    assert one.processes() == []


@pytest.mark.chaos
def test_nothing_is_left(tmp_path):
    before = module._names()

    def fails():
        with Hosts(tmp_path / "hosts", ("one",)) as found:
            processes.append(found["one"].start(["sleep", "1000"]))
            raise LookupError

    processes = []
    with pytest.raises(LookupError):
        fails()
    [process] = processes
    assert process.wait(LONG) == -9
    assert module._names() == before


BUILD = """
import os, signal, sys
from tests.hosts.hosts import Hosts
Hosts(sys.argv[1], ("one", "two")).__enter__()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.chaos
def test_what_a_killed_run_has_left_is_removed_and_what_others_need_is_not(pair, tmp_path):
    killed = subprocess.Popen([sys.executable, "-c", BUILD, tmp_path / "left"])
    assert killed.wait(LONG) == -9
    assert remove_stale() == [f"sparkdl-{killed.pid}-0-{name}" for name in ("one", "switch", "two")]
    assert run(pair["one"], "hostname", out=tmp_path / "out") == (0, "one")
