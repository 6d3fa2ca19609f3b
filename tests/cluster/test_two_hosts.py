"""Everything once on a cluster of two hosts: members that meet over the network, a fit, its model somewhere else."""

from __future__ import annotations

import pytest

from tests.cluster import drivers

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def test_members_meet_between_two_addresses(cluster):
    found = cluster.drive(drivers.meet, 2).result()
    one, two = cluster.workers
    assert {member["host"] for member in found} == {"one", "two"}
    for member in found:
        own, other = (one, two) if member["host"] == "one" else (two, one)
        assert other.address in member["connected"]
        assert set(member["connected"]) <= {cluster.head.address, own.address, other.address}
