"""What parts keep for themselves."""

from __future__ import annotations

import cloudpickle
import pytest
import torch

from sparkdl.errors import InvalidInput
from sparkdl.rounds.local_state import LocalState
from tests.object_store import object_store


def test_a_memory_is_read_by_its_name_by_whoever_has_a_copy(tmp_path):
    memories = LocalState(str(tmp_path / "memories"))
    memories.open()
    name = memories.write(3, 1, {"x": torch.arange(3.0), "rho": 0.5})
    found = cloudpickle.loads(cloudpickle.dumps(memories)).read(name)
    assert torch.equal(found["x"], torch.arange(3.0))
    assert found["rho"] == 0.5
    assert name.startswith("round-000003/part-00001-")
    assert memories.write(3, 1, {}) != name


def test_a_directory_that_is_not_the_drivers_is_refused(tmp_path):
    memories = LocalState(str(tmp_path / "memories"))
    with pytest.raises(InvalidInput, match=r"not share the driver's directory .*set runDir"):
        memories.write(1, 0, {})
    memories.open()
    name = memories.write(1, 0, {})
    memories.close()
    with pytest.raises(InvalidInput, match="not share the driver's directory"):
        memories.read(name)


def test_a_driver_takes_away_the_tokens_of_those_before(tmp_path):
    LocalState(str(tmp_path)).open()
    LocalState(str(tmp_path)).open()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_round_is_forgotten(tmp_path):
    memories = LocalState(str(tmp_path))
    memories.open()
    names = [memories.write(number, 0, number) for number in (1, 2)]
    memories.forget(1)
    memories.forget(-1)
    with pytest.raises(FileNotFoundError):
        memories.read(names[0])
    assert memories.read(names[1]) == 2


def test_memories_on_an_object_store(tmp_path):
    with object_store(tmp_path) as query:
        memories = LocalState(f"s3://key:secret@runs/memories?{query}")
        memories.open()
        assert memories.read(memories.write(1, 0, {"u": 1})) == {"u": 1}
        memories.forget(1)
        memories.close()
    assert "secret" not in repr(memories)
