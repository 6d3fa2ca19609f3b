"""``tests/retry.py`` on small suites of its own, each in a fresh directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("retry.py")
SETTINGS = "[pytest]\nmarkers =\n    cluster: x\n    chaos: x\n    gpu: x\n"

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
STEADY = "import pytest\n@pytest.mark.cluster\ndef test_steady():\n    open('runs', 'a').write('x')\n"
KILLED = "import os, pytest\n@pytest.mark.chaos\ndef test_killed():\n    os._exit(1)\n"


@pytest.fixture
def retry(tmp_path):
    def run(*tests: str) -> tuple[int, list[str]]:
        (tmp_path / "pytest.ini").write_text(SETTINGS)
        for number, text in enumerate(tests):
            (tmp_path / f"test_{number}.py").write_text(text)
        done = subprocess.run([sys.executable, PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False)
        retried = [line.partition("::")[2] for line in done.stdout.splitlines() if line.startswith("RETRY: ")]
        return done.returncode, sorted(retried)

    return run


def test_all_pass_and_gpu_stays_out(retry):
    assert retry(PLAIN, STEADY, GPU) == (0, [])


def test_no_cluster_tests_is_fine(retry):
    assert retry(PLAIN) == (0, [])


def test_no_tests_at_all_is_an_error(retry):
    assert retry() == (pytest.ExitCode.NO_TESTS_COLLECTED, [])


def test_marked_tests_get_a_second_chance_and_are_named(retry):
    assert retry(PLAIN, FLAKY.format(mark="cluster"), FLAKY.format(mark="chaos")) == (0, ["test_chaos", "test_cluster"])


def test_only_failed_tests_run_again(retry, tmp_path):
    assert retry(PLAIN, STEADY, FLAKY.format(mark="chaos")) == (0, ["test_chaos"])
    assert (tmp_path / "runs").read_text() == "x"


def test_ensembles_are_a_lot_of_their_own_and_have_two_chances_as_well(retry, tmp_path):
    (tmp_path / "ensembles").mkdir()
    (tmp_path / "ensembles" / "test_flaky.py").write_text(FLAKY.format(mark="cluster"))
    assert retry(PLAIN, FLAKY.format(mark="chaos"), STEADY) == (0, ["test_chaos", "test_cluster"])
    assert (tmp_path / "runs").read_text() == "x"


def test_second_failure_counts(retry):
    assert retry(PLAIN, HOPELESS) == (pytest.ExitCode.TESTS_FAILED, ["test_hopeless"])


def test_other_tests_have_one_chance(retry):
    assert retry(BROKEN, STEADY) == (pytest.ExitCode.TESTS_FAILED, [])


def test_failure_outside_outlives_a_retry_that_passes(retry):
    assert retry(BROKEN, FLAKY.format(mark="cluster")) == (pytest.ExitCode.TESTS_FAILED, ["test_cluster"])


def test_run_that_dies_is_not_retried(retry):
    assert retry(PLAIN, KILLED) == (1, [])


def test_collection_error_is_not_retried(retry):
    assert retry("import nowhere_at_all\n", STEADY) == (pytest.ExitCode.INTERRUPTED, [])
