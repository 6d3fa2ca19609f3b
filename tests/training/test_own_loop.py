"""Users' own loops in processes of this machine, and the example that has one."""

from __future__ import annotations

import ast
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
from tests.sessions import driver_environment

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = "examples/own_loop.py"


@pytest.fixture(scope="module")
def pair():
    with LocalCluster(2, timeout=60.0) as cluster:
        yield cluster


class TestOwnLoops(OwnLoopContract):
    @pytest.fixture
    def cluster(self, pair):
        return pair

    def test_parts_may_be_uneven_and_empty(self, cluster):
        case = Case(batch_size=7)
        whole = pa.table({name: array.tolist() for name, array in numbers().items()})
        for first in (3, 0):
            parts = [whole.slice(0, first), whole.slice(first)]
            ours = cluster.gang(work.Fit(case.training(AllReduce())), parts, case.columns())
            theirs = cluster.gang(own_loops.Ddp(case.training(AllReduce())), parts, case.columns())
            for own, ddp in zip(ours, theirs, strict=True):
                assert_equal(ddp["parameters"], own["parameters"], 1e-12)
        assert all(np.isfinite(array).all() for array in theirs[0]["parameters"].values())


# ---- the example ------------------------------------------------------------------------------------------------


def run(command, local):
    for_plain_python = {"PYSPARK_SUBMIT_ARGS": "--master local[2] pyspark-shell"}  # whatever cores there are
    return subprocess.run(
        [Path(sys.executable).parent / command[0], *command[1:], EXAMPLE],
        cwd=ROOT,
        env=driver_environment(local, **for_plain_python),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


SUBMIT = ["spark-submit", "--properties-file", "conf/spark/local.conf"]
SUBMIT += ["--conf", f"spark.executorEnv.PYTHONPATH={ROOT}"]


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("command", [["python"], SUBMIT], ids=["python", "spark-submit"])
def test_example(command, tmp_path):
    ended = run(command, tmp_path)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    rows = [int(number) for number in re.search(r"rows of each member: \[(.+)\]", said)[1].split(",")]
    assert len(rows) == 2
    assert sum(rows) == 1437
    assert float(re.search(r"accuracy (\S+)", said)[1]) >= 0.95


def test_example_is_short():
    text = (ROOT / EXAMPLE).read_text(encoding="utf-8")
    prose = {line for node in ast.walk(ast.parse(text)) for line in docstring_lines(node)}
    code = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.strip().startswith("#") and number not in prose
    ]
    assert len(code) < 80


def docstring_lines(node):
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return range(node.lineno, node.end_lineno + 1)
    return range(0)
