"""Everything once on a cluster of two hosts: members that meet over the network, a fit, its model somewhere else."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.cluster import drivers
from tests.sessions import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]


def test_members_meet_between_two_addresses(cluster):
    found = cluster.drive(drivers.meet, 2).result()
    one, two = cluster.workers
    assert {member["host"] for member in found} == {"one", "two"}
    for member in found:
        own, other = (one, two) if member["host"] == "one" else (two, one)
        assert other.address in member["connected"]
        # Loopback is where Spark's JVM and its Python worker talk.
        assert set(member["connected"]) <= {cluster.head.address, own.address, other.address, "127.0.0.1"}
    cluster.nothing_left()


def test_the_contract_of_clusters(cluster):
    place, suite = cluster.place, Path(__file__).with_name("contract_on_hosts.py")
    quiet = ["-q", "-p", "no:cacheprovider", "--basetemp", f"{place.folder}/pytest"]
    driver = cluster.start(
        [sys.executable, "-m", "pytest", *quiet, str(suite)], place, SPARKDL_PLACE=json.dumps(asdict(place))
    )
    assert driver.wait(180) == 0, driver.output
    assert " skipped" not in driver.output
    assert " passed" in driver.output


def test_digits_from_parquet_to_a_model_that_is_loaded_elsewhere(cluster, tmp_path):
    data, model = tmp_path / "data", tmp_path / "model"
    subprocess.run([sys.executable, ROOT / "examples" / "digits_to_parquet.py", data], check=True)
    found = cluster.drive(drivers.learn, data, model).result()
    assert found >= 0.97
    assert cluster.drive(drivers.score, data, model).result() == found
    cluster.nothing_left()


def test_a_directory_that_is_another_one_on_each_host_is_refused_before_the_first_step(cluster):
    folder = cluster.hosts.local / "run"
    found = cluster.drive(drivers.refused, folder).result()
    one, two = found.find("rank 0 on"), found.find("rank 1 on")
    assert f"{folder}/checkpoints is not one directory for all members" in found
    assert "cannot see what rank 0 on" in found
    assert "Expected a runDir that all hosts share" in found
    assert {found[at + 10 : at + 13] for at in (one, two)} == {"one", "two"}
    assert list(cluster.hosts.folder.glob("*/run/steps")) == []
