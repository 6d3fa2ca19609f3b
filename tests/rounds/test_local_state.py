"""Files of the shards' local states."""

from __future__ import annotations

import cloudpickle
import pytest
import torch

from sparkdl.errors import InvalidInput
from sparkdl.rounds.local_state import LocalState
from tests.object_store import object_store


def test_pickled_copy_reads_state_by_name(tmp_path):
    states = LocalState(str(tmp_path / "states"))
    states.take_over()
    name = states.write(3, 1, {"x": torch.arange(3.0), "rho": 0.5})
    found = cloudpickle.loads(cloudpickle.dumps(states)).read(name)
    assert torch.equal(found["x"], torch.arange(3.0))
    assert found["rho"] == 0.5
    assert name.startswith("round-000003/shard-00001-")
    assert states.write(3, 1, {}) != name


def test_directory_without_token_of_driver_raises(tmp_path):
    states = LocalState(str(tmp_path / "states"))
    with pytest.raises(InvalidInput, match=r"not share the driver's directory .*set runDir"):
        states.write(1, 0, {})
    states.take_over()
    name = states.write(1, 0, {})
    states.withdraw()
    with pytest.raises(InvalidInput, match="not share the driver's directory"):
        states.read(name)
    for _ in range(2):  # a driver deletes the tokens of earlier drivers
        LocalState(str(tmp_path / "tokens")).take_over()
    assert len(list((tmp_path / "tokens").iterdir())) == 1


def test_forget_deletes_one_round(tmp_path):
    states = LocalState(str(tmp_path))
    states.take_over()
    names = [states.write(number, 0, number) for number in (1, 2)]
    states.forget(1)
    states.forget(-1)
    with pytest.raises(FileNotFoundError):
        states.read(names[0])
    assert states.read(names[1]) == 2


def test_object_store_serves_states(tmp_path):
    with object_store(tmp_path) as query:
        states = LocalState(f"s3://key:secret@runs/states?{query}")
        states.take_over()
        assert states.read(states.write(1, 0, {"u": 1})) == {"u": 1}
        states.forget(1)
        states.withdraw()
    assert "secret" not in repr(states)
