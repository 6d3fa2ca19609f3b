"""Directories of checkpoints on every kind of filesystem."""

import pytest

from tests.checkpoint.saving import fenced
from tests.object_store import object_store


@pytest.fixture(params=["local", "s3"])
def directory(request, tmp_path):
    if request.param == "local":
        yield f"{tmp_path}/deep/checkpoints"
        return
    with object_store(tmp_path) as query:
        yield f"s3://key:secret@runs/deep/checkpoints?{query}"


@pytest.fixture
def local(tmp_path):
    return fenced(str(tmp_path))
