"""Rounds without Spark keep the contract."""

from __future__ import annotations

import socket
import struct
from multiprocessing.connection import Connection

import pytest

from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.worker_process import WorkerProcess
from tests.contracts.map_reduce_contract import LossContract, MapReduceContract


class TestInline(MapReduceContract):
    @pytest.fixture
    def cluster(self):
        return InlineCluster()


class TestLocal(MapReduceContract, LossContract):
    @pytest.fixture
    def cluster(self, pair):
        return pair

    def test_gang_and_rounds_take_turns(self, cluster):
        assert cluster.gang(lambda world, shard: world.rank) == [0, 1]


def test_truncated_answer_means_process_has_ended():
    process = WorkerProcess(0)
    ours, theirs = socket.socketpair()
    process.connection.close()
    process.connection = Connection(ours.detach())
    try:
        theirs.sendall(struct.pack("!i", 100) + b"half of it")  # as multiprocessing announces a hundred bytes
        theirs.close()
        with pytest.raises(EOFError):
            process.receive()
    finally:
        process.kill()
