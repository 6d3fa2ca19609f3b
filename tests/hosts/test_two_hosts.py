"""Everything once on a cluster of two hosts: members that meet over the network, a fit, its model somewhere else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.contracts.cluster_contract import ClusterContract
from tests.hosts import drivers
from tests.sessions import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]


def test_members_meet_between_two_addresses(cluster):
    found = cluster.driver().call(drivers.meet, 2).result()
    one, two = cluster.workers
    assert {member["host"] for member in found} == {"one", "two"}
    for member in found:
        own, other = (one, two) if member["host"] == "one" else (two, one)
        assert other.address in member["connected"]
        # Loopback is where Spark's JVM and its Python worker talk.
        assert set(member["connected"]) <= {cluster.head.address, own.address, other.address, "127.0.0.1"}
    cluster.gang_gone()


def test_the_contract_of_clusters(cluster, tmp_path):
    suite = Path(__file__).with_name("contract_on_hosts.py")
    found = cluster.driver().call(drivers.suite, suite, tmp_path / "suite").result()
    assert found["others"] == []
    assert (found["code"], found["passed"]) == (0, sum(name.startswith("test_") for name in dir(ClusterContract)))
    cluster.gang_gone()


def test_a_directory_that_is_another_one_on_each_host_is_refused_before_the_first_step(cluster):
    folder = cluster.hosts.local / "run"
    found = cluster.driver().call(drivers.refused, folder).result()
    one, two = found.find("rank 0 on"), found.find("rank 1 on")
    assert f"{folder}/checkpoints is not one directory for all workers" in found
    assert "cannot read what rank 0 on" in found
    assert "Expected a runDir that all hosts share" in found
    assert {found[at + 10 : at + 13] for at in (one, two)} == {"one", "two"}
    assert list(cluster.hosts.folder.glob("*/run/steps")) == []
    cluster.gang_gone()


def test_digits_from_parquet_to_a_model_that_another_driver_loads(cluster, tmp_path):
    data, model = tmp_path / "data", tmp_path / "model"
    subprocess.run([sys.executable, ROOT / "examples" / "digits_to_parquet.py", data], check=True)
    found = cluster.driver().call(drivers.learn, data, model).result()
    assert found >= 0.97
    cluster.end_driver()
    assert cluster.driver().call(drivers.score, data, model).result() == found
    cluster.end_driver()
