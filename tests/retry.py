"""Run every test that needs no GPU: ``python tests/retry.py [pytest arguments]``.

Tests on real executors and tests that kill things depend on how the operating system shares a busy machine, so those
marked ``cluster`` or ``chaos`` get a second chance when they fail. Each one that takes it is printed. All other tests
have one chance.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ONE_CHANCE = "not cluster and not chaos and not gpu"
TWO_CHANCES = "(cluster or chaos) and not gpu"


def run(*arguments: str) -> int:
    """One pytest run in a process of its own; its exit code, negative where a signal ended it."""
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def failures(cache: Path) -> list[str]:
    """What failed in the last run that kept its cache in ``cache``; empty where that run did not live to say."""
    record = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(record.read_text(encoding="utf-8"))) if record.exists() else []


def run_twice(*arguments: str) -> int:
    """Run pytest, and the failed tests once more. To find no tests at all is fine, but not the second time."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (*arguments, "-o", f"cache_dir={folder}")
        code = run(*arguments)
        if code == pytest.ExitCode.NO_TESTS_COLLECTED:
            return 0
        failed = failures(Path(folder))
        if code != pytest.ExitCode.TESTS_FAILED or not failed:
            return code
        for name in failed:
            print(f"RETRY: {name}", flush=True)
        return run(*arguments, "--last-failed", "--last-failed-no-failures", "none")


def main(arguments: Sequence[str]) -> int:
    """Both halves, even where the first one fails; the exit code of the first that failed."""
    codes = run(*arguments, "-m", ONE_CHANCE), run_twice(*arguments, "-m", TWO_CHANCES)
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
