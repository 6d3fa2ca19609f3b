"""The example of a user's own loop on executors reaches its accuracy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sessions import ROOT, driver_environment


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
