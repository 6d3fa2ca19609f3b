"""``tests/parallel.py`` on small suites of its own, each in a fresh directory."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.parallel import OLDEST

PROGRAM = Path(__file__).with_name("parallel.py")
SETTINGS = "[pytest]\nmarkers =\n    cluster: x\n    chaos: x\n    gpu: x\n    slow: x\n    notebook: x\n"

PLAIN = "def test_plain():\n    pass\n"
BROKEN = "def test_broken():\n    assert False\n"
GPU = "import pytest\n@pytest.mark.gpu\n@pytest.mark.cluster\ndef test_gpu():\n    assert False\n"
# Leaves a file behind, and fails unless it is there already.
FLAKY = """
import pathlib, pytest
@pytest.mark.{mark}
def test_{mark}():
    seen = pathlib.Path("seen_{mark}")
    known = seen.exists()
    seen.touch()
    assert known
"""
HOPELESS = "import pytest\n@pytest.mark.cluster\ndef test_hopeless():\n    assert False\n"
HOPELESS_CHAOS = HOPELESS.replace("cluster", "chaos")
STEADY = "import pytest\n@pytest.mark.cluster\ndef test_steady():\n    open('runs', 'a').write('x')\n"
KILLED = "import os, pytest\n@pytest.mark.chaos\ndef test_killed():\n    os._exit(1)\n"

CLUSTER, CHAOS = FLAKY.format(mark="cluster"), FLAKY.format(mark="chaos")
FAILED = pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "tests", "code", "retried"),
    [
        ((), (PLAIN, STEADY, GPU), 0, []),
        ((), (PLAIN,), 0, []),
        ((), (), pytest.ExitCode.NO_TESTS_COLLECTED, []),
        ((), (PLAIN, STEADY, CLUSTER, CHAOS), 0, ["test_chaos", "test_cluster"]),
        ((), (PLAIN, HOPELESS), FAILED, ["test_hopeless"]),
        ((), (BROKEN, STEADY), FAILED, []),
        ((), (BROKEN, CLUSTER), FAILED, ["test_cluster"]),
        ((), (PLAIN, KILLED), 1, []),
        ((), ("import nowhere_at_all\n", STEADY), pytest.ExitCode.INTERRUPTED, []),
        (("--fast",), (PLAIN, STEADY, HOPELESS_CHAOS), 0, []),
        (("--fast",), (PLAIN, CLUSTER), FAILED, []),
    ],
    ids=["pass", "one lot", "none", "flaky", "hopeless", "broken", "both", "killed", "import", "fast", "fast flaky"],
)
def test_code_and_second_chances(options, tests, code, retried, tmp_path):
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    for number, text in enumerate(tests):
        # A test of ensembles runs in a lot of its own, and has two chances as well.
        path = tmp_path / "tests" / ("ensembles" if text is CLUSTER else "") / f"test_{number}.py"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    command = [sys.executable, PROGRAM, *options]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    names = [line.partition("::")[2] for line in ended.stdout.splitlines() if line.startswith("RETRY: ")]
    assert (ended.returncode, sorted(names)) == (code, retried)
    if CHAOS in tests:  # passed tests do not run again
        assert (tmp_path / "runs").read_text() == "x"


@pytest.mark.slow
def test_oldest_pyspark_runs_the_tests_of_spark_once_more(tmp_path):
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    for path in (tmp_path / "tests" / name for name in OLDEST):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STEADY.replace("'x'", "__import__('os').environ['PYSPARK_PYTHON'] + '\\n'"))
    oldest = tmp_path / "oldest"
    oldest.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    oldest.chmod(0o755)
    command = [sys.executable, PROGRAM, "--oldest", oldest.name]
    subprocess.run(command, cwd=tmp_path, check=True)
    expected = Counter({sys.executable: len(OLDEST), str(oldest): len(OLDEST)})
    assert Counter((tmp_path / "runs").read_text().split()) == expected
    path.unlink()  # a missing place is no success
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == pytest.ExitCode.USAGE_ERROR
