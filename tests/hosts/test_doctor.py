"""``sparkdl doctor`` on two hosts finds each planted fault by the host's name, and nothing on a healthy cluster."""

from __future__ import annotations

import re
import shutil

import pytest

from benchmarks.slow_links.network import shape, unshape
from tests.hosts import drivers
from tests.sessions import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]

CHECKS = (
    "dynamic allocation",
    "encryption",
    "slots",
    "executors",
    "versions",
    "gloo",
    "disk",
    "driver",
    "interface",
    "connections",
    "link",
    "all-reduce",
)

WITHOUT_GLOO = "import torch.distributed\ntorch.distributed.is_gloo_available = lambda: False\n"
OTHER_VERSIONS = "import numpy\nnumpy.__version__ = '2.0.1'\nimport torch\ntorch.__version__ = '2.10.0'\n"
MISSING = "raise ModuleNotFoundError(\"No module named 'sparkdl'\", name='sparkdl')\n"


@pytest.fixture
def driver(cluster):
    """The driver. Its executors find modules in a folder that differs by host first, and start without sparkdl."""
    modules = f"{cluster.hosts.local / 'modules'}:{ROOT}"
    return cluster.driver(executorEnv__PYTHONPATH=modules, python__daemon__module="pyspark.daemon")


@pytest.fixture
def call(driver):
    """Call a function of ``tests.hosts.drivers`` that runs the doctor: exit code, and status and text by check."""

    def call(function, *arguments):
        found = driver.call(function, *arguments).result()
        lines = found["printed"].splitlines()
        checks = {line[6:24].strip(): (line[:4].strip(), line[26:]) for line in lines}
        assert len(checks) == len(lines), found["printed"]
        return found["code"], checks

    return call


@pytest.fixture
def plant(cluster, driver):
    """Write a module that the next Python processes of a host's executor find first."""
    planted = []

    def renew(host):
        cluster.end_python(host)
        driver.call(drivers.renew_python).result()

    def plant(host, path, code):
        planted.append(host)
        file = host.disk / "modules" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code)
        renew(host)

    yield plant
    for host in planted:
        shutil.rmtree(host.disk / "modules")
        renew(host)


def assert_alone(found, names, *, skipped=()):
    """The exit code is 1, these checks fail, others are skipped, and all others are ok."""
    code, checks = found
    expected = dict.fromkeys(checks, "ok") | dict.fromkeys(names, "FAIL") | dict.fromkeys(skipped, "skip")
    assert {name: status for name, (status, _) in checks.items()} == expected
    assert code == 1
    return [checks[name][1] for name in names]


@pytest.fixture
def slow(cluster):
    """Links of 200 Mbit/s, headers included."""
    shape(cluster.workers, 200.0)
    yield
    unshape(cluster.workers)


@pytest.mark.usefixtures("slow")
def test_healthy_cluster(cluster, call):
    code, checks = call(drivers.doctor, "--run_dir", str(cluster.shared / "run"), "--num_workers", "3")
    assert [status for status, _ in checks.values()] == ["ok"] * len(checks)
    assert set(checks) == {*CHECKS, "run directory"}
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


def test_no_route_between_executors(cluster, call):
    one, two = cluster.workers
    one.drop_packets_to(two)
    try:
        found = call(drivers.doctor)
    finally:
        one.send_packets_to(two)
    (text,) = assert_alone(found, ["connections"], skipped=["link", "all-reduce"])
    places = [f"{host.name} ({host.address}, eth0)" for host in (one, two)]
    for first, second in (places, reversed(places)):
        assert f"{first} cannot connect to {second}: no answer within 5 s" in text
    assert "Open all ports between the executors' hosts" in text


def test_interface_that_one_host_lacks(cluster, call):
    cluster.workers[0].add_interface("spare", "10.78.0.1")
    found = call(drivers.doctor_on, "spare")
    (text,) = assert_alone(found, ["interface"], skipped=["connections", "link", "all-reduce"])
    assert text.startswith("two: 'spare' is neither an interface nor an address of this host")
    assert "Set spark.sparkdl.network to an interface that connects the hosts" in text


def test_loopback_interface(call):
    skipped = ["link", "all-reduce"]
    text, _ = assert_alone(call(drivers.doctor_on, "lo"), ["interface", "connections"], skipped=skipped)
    for name in ("one", "two"):
        assert f"{name} (127.0.0.1, lo): other hosts cannot reach a loopback address" in text


def test_too_few_slots(call):
    (text,) = assert_alone(call(drivers.doctor, "--num_workers", "5"), ["slots"])
    assert text.startswith("5 workers need 5 task slots at a time, but the configuration allows 4")


def test_full_disk_and_directory_of_one_host(cluster, call):
    host = cluster.workers[1]
    executor = cluster.executor(host)
    (folder,) = (host.disk / "spark").glob("spark-*/executor-*/blockmgr-*")
    local = cluster.hosts.local / folder.relative_to(host.disk)
    host.fill_disk(executor, local)
    try:
        found = call(drivers.doctor, "--run_dir", str(cluster.hosts.local / "run"))
    finally:
        host.empty_disk(executor, local)
    full, unshared = assert_alone(found, ["disk", "run directory"])
    assert full.startswith(f"two:{local} has 0.0 GB free: No space left on device. Free space there")
    assert "one:" not in full
    for name in ("one", "two"):
        assert f"{name} does not see what the driver wrote there" in unshared


def test_other_versions_on_one_host_and_no_gloo_on_the_other(cluster, call, plant):
    one, two = cluster.workers
    plant(one, "sitecustomize.py", WITHOUT_GLOO)
    plant(two, "sitecustomize.py", OTHER_VERSIONS)
    versions, gloo = assert_alone(call(drivers.doctor), ["versions", "gloo"], skipped=["all-reduce"])
    assert versions.startswith("two has torch 2.10.0, on the driver 2.")
    assert ", numpy 2.0.1, on the driver " in versions
    assert "one" not in versions.partition(". Install")[0]
    assert gloo.startswith("one: torch 2.")
    assert " has no gloo. Install a torch build with torch.distributed and gloo" in gloo
    assert "two" not in gloo


def test_sparkdl_missing_on_one_host(cluster, call, plant):
    plant(cluster.workers[1], "sparkdl/__init__.py", MISSING)
    code, checks = call(drivers.doctor)
    assert code == 1
    assert checks["executors"] == ("ok", "Python tasks ran on 2 executors: one, two")
    assert checks["versions"][0] == "FAIL"
    assert checks["versions"][1].startswith("two has no sparkdl (ModuleNotFoundError: No module named 'sparkdl').")
    for name in ("gloo", "disk", "driver"):
        assert checks[name][0] == "ok"
        assert "1 executor" in checks[name][1]
    for name in ("interface", "connections", "link", "all-reduce"):
        assert checks[name] == ("skip", "not possible while executors cannot import sparkdl")
    assert "java" not in str(checks)


def test_dynamic_allocation_and_encryption(on_demand):
    found, accepted = on_demand.doctor, on_demand.accepted
    assert (found["code"], accepted["code"]) == (1, 1)
    texts = found["printed"].splitlines()
    assert [line[:24].strip() for line in texts[:2]] == ["FAIL  dynamic allocation", "FAIL  encryption"]
    assert "Submit with spark.dynamicAllocation.enabled=false." in texts[0]
    assert "spark.io.encryption.enabled is true" in texts[1]
    assert {line[:4] for line in texts[2:-4]} == {"ok  "}
    skipped = [f"skip  {name}" for name in ("interface", "connections", "link", "all-reduce")]
    assert [line[:24].strip() for line in texts[-4:]] == skipped
    assert "ok    encryption" in accepted["printed"]
