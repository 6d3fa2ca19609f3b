"""``sparkdl doctor`` on two hosts finds each planted fault by the host's name, and nothing on a healthy cluster."""

import re
import shutil

import pytest

from benchmarks.slow_links.network import shape, unshape
from tests.hosts import drivers
from tests.sessions import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

SETTINGS = ("dynamic allocation", "encryption", "slots")
EXECUTORS = ("executors", "versions", "gloo", "disk", "driver", "run directory")
GANG = ("interface", "connections", "link", "all-reduce")

WITHOUT_GLOO = "import torch.distributed\ntorch.distributed.is_gloo_available = lambda: False\n"
OTHER_VERSIONS = "import numpy\nnumpy.__version__ = '2.0.1'\nimport torch\ntorch.__version__ = '2.10.0'\n"


@pytest.fixture
def driver(cluster):
    """The driver. Its executors find modules in a folder that differs by host first, and start without sparkdl."""
    modules = f"{cluster.hosts.local / 'modules'}:{ROOT}"
    return cluster.driver(executorEnv__PYTHONPATH=modules, python__daemon__module="pyspark.daemon")


@pytest.fixture
def call(driver):
    """Run the doctor there: its exit code, and status and text by check."""

    def call(*arguments):
        found = driver.call(drivers.doctor, *arguments).result()
        lines = found["printed"].splitlines()
        checks = {line[6:24].strip(): (line[:4].strip(), line[26:]) for line in lines}
        assert len(checks) == len(lines), found["printed"]
        assert list(checks) == [*SETTINGS, *EXECUTORS, *GANG]
        return found["code"], checks

    return call


@pytest.fixture
def slow(cluster):
    """Links of 200 Mbit/s, headers included."""
    shape(cluster.workers, 200.0)
    yield
    unshape(cluster.workers)


@pytest.mark.usefixtures("slow")
def test_healthy_cluster(cluster, call):
    code, checks = call("--run_dir", str(cluster.shared / "run"), "--num_workers", "3")
    assert [status for status, _ in checks.values()] == ["ok"] * len(checks)
    assert code == 0
    assert [*(cluster.shared / "run").iterdir()] == []
    assert checks["slots"][1] == "4 task slots on 2 executors, up to 2 on each; 4 are configured; 3 workers"
    assert checks["connections"][1] == "all 2 connections between 2 hosts"
    link = re.fullmatch(
        r"the slowest of 2 links is from (\w+) .* to (\w+) .*; sparkdl plan --bandwidth (\S+) --latency (\S+)",
        checks["link"][1],
    )
    assert {link[1], link[2]} == {"one", "two"}
    assert 0 < float(link[3]) <= 200
    assert float(link[4]) > 0
    assert checks["all-reduce"][1].startswith("gloo summed a tensor over 3 workers")
    for host in cluster.workers:
        assert f"{host.name} ({host.address}, eth0)" in checks["interface"][1]
    cluster.gang_gone()


@pytest.fixture
def broken(cluster, driver):
    """Other versions and a full disk on host two, no gloo on host one, and no route between the two; the full disk."""
    one, two = cluster.workers
    planted = {one: WITHOUT_GLOO, two: OTHER_VERSIONS}
    for host, code in planted.items():
        (host.disk / "modules").mkdir()
        (host.disk / "modules/sitecustomize.py").write_text(code)
        cluster.end_python(host)  # the next Python processes of its executor find the module first
    driver.call(drivers.renew_python).result()
    executor = cluster.executor(two)
    (folder,) = (two.disk / "spark").glob("spark-*/executor-*/blockmgr-*")
    local = cluster.hosts.local / folder.relative_to(two.disk)
    two.fill_disk(executor, local)
    one.drop_packets_to(two)
    yield local
    one.send_packets_to(two)
    two.empty_disk(executor, local)
    for host in planted:
        shutil.rmtree(host.disk / "modules")
        cluster.end_python(host)
    driver.call(drivers.renew_python).result()


def test_every_fault_is_found_beside_the_others_and_names_its_host(cluster, call, broken):
    code, checks = call("--run_dir", str(cluster.hosts.local / "run"), "--num_workers", "5")
    assert code == 1
    failed, skipped = ("slots", "versions", "gloo", "disk", "run directory", "connections"), ("link", "all-reduce")
    expected = dict.fromkeys(checks, "ok") | dict.fromkeys(failed, "FAIL") | dict.fromkeys(skipped, "skip")
    assert {name: status for name, (status, _) in checks.items()} == expected
    slots, versions, gloo, disk, directory, connections = (checks[name][1] for name in failed)
    assert slots.startswith("5 workers need 5 task slots at a time, but the configuration allows 4")
    assert versions.startswith("two has torch 2.10.0, on the driver 2.")
    assert ", numpy 2.0.1, on the driver " in versions
    assert "one" not in versions.partition(". Install")[0]
    assert gloo.startswith("one: torch 2.")
    assert " has no gloo. Install a torch build with torch.distributed and gloo" in gloo
    assert "two" not in gloo
    assert disk.startswith(f"two:{broken} has 0.0 GB free: No space left on device. Free space there")
    assert "one:" not in disk
    for name in ("one", "two"):
        assert f"{name} does not see what the driver wrote there" in directory
    places = [f"{host.name} ({host.address}, eth0)" for host in cluster.workers]
    for first, second in (places, reversed(places)):
        assert f"{first} cannot connect to {second}: no answer within 5 s" in connections
    assert "Open all ports between the executors' hosts" in connections
