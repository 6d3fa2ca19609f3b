"""Whether processes see one directory, on every kind of filesystem."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.errors import InvalidInput
from sparkdl.io.files import Folder


def test_only_processes_of_one_directory_see_its_token(directory: str, tmp_path: Path) -> None:
    folder = Folder.of(directory)
    first, second = SharedDirectory(folder, "token-1"), SharedDirectory(folder, "token-2")
    elsewhere = SharedDirectory(Folder.of(f"{tmp_path}/elsewhere"), "token-1")
    assert not first.sees()
    first.announce()
    first.check("shards are written")
    assert not second.sees()
    with pytest.raises(InvalidInput, match=r"elsewhere is not the driver's on this host, and shards are written there"):
        elsewhere.check("shards are written")
    first.withdraw()
    assert not first.sees()
    assert not folder.sizes("")


def test_a_later_process_takes_away_the_tokens_of_earlier_ones(directory: str) -> None:
    folder = Folder.of(directory)
    first, second = SharedDirectory(folder, "token-1"), SharedDirectory(folder, "token-2")
    first.announce()
    second.announce()
    second.withdraw_others()
    assert (first.sees(), second.sees()) == (False, True)
