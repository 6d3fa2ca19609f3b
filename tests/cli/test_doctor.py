"""Failures of ``sparkdl doctor`` on one machine.

tests/docs/test_commands.py runs it without any, and tests/hosts/test_doctor.py plants faults on several hosts.
"""

from __future__ import annotations

import pytest

from sparkdl.cli.commands import run


@pytest.mark.slow
def test_failures_end_with_1_and_their_names(job):
    code, printed = job("doctor", "--num_workers", 3, "--min_free_gb", 1e9)
    assert code == 1
    assert printed.endswith("error: 2 of 12 checks are not ok: slots, disk.\n")
    assert "FAIL  slots               3 workers need 3 task slots at a time, but the configuration allows 2" in printed
    assert " GB free: expected at least 1e+09 GB. Free space there" in printed
    assert "gloo summed a tensor over 2 workers" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num_workers", "0"], "num_workers is 0; expected a whole number of at least 1, or None."),
        (["--timeout", "0"], "timeout is 0.0; expected a finite number above 0."),
        (["--workers", "2"], "workers"),
    ],
)
def test_mistake_ends_with_2(capsys, words, message):
    try:
        code = run("doctor", words)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert message in capsys.readouterr().err


def test_run_dir_that_is_a_file(job, tmp_path):
    (tmp_path / "file").touch()
    code, printed = job("doctor", "--run_dir", tmp_path / "file")
    assert code == 2
    assert "error: the driver cannot write in the run_dir" in printed
