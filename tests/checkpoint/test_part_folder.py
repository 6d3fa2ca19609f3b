"""Workers write parts of large weights only where the driver sees them."""

import pytest

from sparkdl.checkpoint.part_folder import PartFolder
from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.errors import InvalidInput


def test_parts_need_a_folder_that_the_driver_shares(tmp_path):
    directory = SharedDirectory(str(tmp_path / "parts"))
    with pytest.raises(InvalidInput, match=r"does not share the driver's directory .*/parts, which holds the"):
        PartFolder(directory, "").check()
    directory.announce()
    PartFolder(directory, "").check()
