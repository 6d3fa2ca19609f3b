"""Files of the shards' local states."""

from __future__ import annotations

import cloudpickle
import pytest
import torch

from sparkdl.errors import InvalidInput
from sparkdl.rounds.local_state import LocalState
from tests.object_store import object_store


def test_pickled_copy_reads_state_by_name_until_its_round_is_deleted(tmp_path):
    states = LocalState(str(tmp_path / "states"))
    states.take_over()
    name = states.write(3, 1, {"x": torch.arange(3.0), "rho": 0.5})
    other = states.write(4, 1, {})
    read = cloudpickle.loads(cloudpickle.dumps(states)).read
    assert torch.equal(read(name)["x"], torch.arange(3.0))
    assert read(name)["rho"] == 0.5
    assert name.startswith("round-000003/shard-00001-")
    assert states.write(3, 1, {}) != name
    states.forget(3)
    states.forget(-1)
    with pytest.raises(FileNotFoundError):
        read(name)
    assert read(other) == {}
    states.withdraw()
    for call in (lambda: read(other), lambda: states.write(4, 1, {})):
        with pytest.raises(InvalidInput, match="not share the driver's directory"):
            call()


def test_object_store_serves_states(tmp_path):
    with object_store(tmp_path) as query:
        states = LocalState(f"s3://key:secret@runs/states?{query}")
        states.take_over()
        assert states.read(states.write(1, 0, {"u": 1})) == {"u": 1}
        states.forget(1)
        states.withdraw()
    assert "secret" not in repr(states)
