"""Directories of checkpoints on every kind of filesystem."""

from __future__ import annotations

import pytest

from tests.checkpoint.saving import fenced
from tests.object_store import object_store


@pytest.fixture(params=["local", "file uri", "s3"])
def directory(request, tmp_path):
    if request.param == "s3":
        with object_store(tmp_path) as query:
            yield f"s3://key:secret@runs/deep/checkpoints?{query}"
    else:
        yield f"{'file://' if request.param == 'file uri' else ''}{tmp_path}/deep/checkpoints"


@pytest.fixture
def local(tmp_path):
    return fenced(str(tmp_path))
