"""Where the tests keep their checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkdl.checkpoint.store import Checkpoints
from tests.checkpoint.saving import fenced
from tests.object_store import object_store


@pytest.fixture(params=["local", "file uri", "s3"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "s3":
        with object_store(tmp_path) as query:
            yield f"s3://key:secret@runs/deep/checkpoints?{query}"
    else:
        yield f"{'file://' if request.param == 'file uri' else ''}{tmp_path}/deep/checkpoints"


@pytest.fixture
def local(tmp_path: Path) -> Checkpoints:
    return fenced(str(tmp_path))
