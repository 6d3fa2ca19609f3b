"""Users' own loops in local processes, and their example on executors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.cluster.local import LocalCluster
from sparkdl.training.strategies.allreduce import AllReduce
from tests.contracts import own_loops, work
from tests.contracts.own_loop_contract import OwnLoopContract
from tests.contracts.strategy_contract import Case, assert_equal, numbers
from tests.sessions import ROOT, driver_environment


@pytest.fixture(scope="module")
def pair():
    with LocalCluster(2, timeout=60.0) as cluster:
        yield cluster


class TestOwnLoops(OwnLoopContract):
    @pytest.fixture
    def cluster(self, pair):
        return pair

    def test_uneven_and_empty_shards(self, cluster):
        case = Case(batch_size=7)
        whole = pa.table({name: array.tolist() for name, array in numbers().items()})
        for first in (3, 0):
            parts = [whole.slice(0, first), whole.slice(first)]
            ours = cluster.gang(work.Fit(case.training(AllReduce())), parts, case.columns())
            theirs = cluster.gang(own_loops.Ddp(case.training(AllReduce())), parts, case.columns())
            for own, ddp in zip(ours, theirs, strict=True):
                assert_equal(ddp["parameters"], own["parameters"], 1e-12)
        assert all(np.isfinite(array).all() for array in theirs[0]["parameters"].values())


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_example(tmp_path):
    submit = [Path(sys.executable).with_name("spark-submit"), "--properties-file", "conf/spark/local.conf"]
    command = [*submit, "--conf", f"spark.executorEnv.PYTHONPATH={ROOT}", "examples/own_loop.py"]
    environment = driver_environment(tmp_path)
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False)
    output = ended.stdout + ended.stderr
    assert ended.returncode == 0, output
    rows = [int(number) for number in re.search(r"rows of each \w+: \[(.+)\]", output)[1].split(",")]
    assert len(rows) == 2
    assert sum(rows) == 1437
    assert float(re.search(r"accuracy (\S+)", output)[1]) >= 0.95
