"""A pipeline on small rows."""

from __future__ import annotations

import pytest

from tests.cli.pipeline.week import Small, write


@pytest.fixture
def small(tmp_path, job) -> Small:
    for name in ("raw", "new"):
        write(tmp_path / name)
    return Small(tmp_path, job)
