"""Checkpoints are written beside the step loop: what it changes meanwhile is not in them, and its errors come back."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections import Counter

import numpy as np
import pytest
import torch

from sparkdl.checkpoint.async_saver import Checkpoint, Saver, copied
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.group.world import World
from sparkdl.errors import Fenced
from sparkdl.io.files import Folder
from sparkdl.io.serialization import unpack_state
from sparkdl.telemetry.clock import Clock


class Board:
    """What the rendezvous store is to ``World.publish`` and ``World.collect``."""

    def __init__(self, size):
        self.values, self.size = {}, size

    def world(self, rank):
        world = World(rank, self.size)
        world.store = self
        return world

    def set(self, key, value):
        self.values[key] = value

    def check(self, keys):
        return all(key in self.values for key in keys)

    def get(self, key):
        return self.values[key]


def checkpoint(step, **shards):
    states = {name: {"x": torch.full((3,), float(value))} for name, value in shards.items()}
    return Checkpoint(Clock(0, step, 0), states)


def both(savers, step):
    for saver, shard in zip(savers, "ab", strict=True):
        saver.save(checkpoint(step, **{shard: step}))


@pytest.fixture
def checkpoints(tmp_path):
    found = Checkpoints(str(tmp_path), run="a run")
    found.fence(0)
    return found


@pytest.fixture
def savers(checkpoints):
    board = Board(2)
    made = [Saver(checkpoints, board.world(rank)) for rank in range(2)]
    yield made
    for saver in made:
        saver.close()


def value(checkpoints, shard):
    _, reader = checkpoints.latest()
    return reader.manifest.clock.step, unpack_state(reader.read(shard))["x"].tolist()[0]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have the priority of their process")
def test_training_comes_first(checkpoints, savers, monkeypatch):
    seen, write = [], Folder.write

    def noticing(folder, name, *data):
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        write(folder, name, *data)

    monkeypatch.setattr(Folder, "write", noticing)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    both(savers, 1)
    for saver in savers:
        saver.wait()
    assert set(seen) == {max(own, 10)}
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def test_where_priorities_may_not_be_changed_it_is_saved_all_the_same(checkpoints, savers, monkeypatch):
    def forbidden(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", forbidden)
    both(savers, 1)
    for saver in savers:
        saver.wait()
    assert value(checkpoints, "a") == (1, 1.0)


def test_it_exists_when_all_have_written(checkpoints, savers):
    first, second = savers
    first.save(checkpoint(1, a=1))
    assert checkpoints.latest() is None
    second.save(checkpoint(1, b=2))
    second.wait()
    first.wait()
    assert value(checkpoints, "a") == (1, 1.0)
    assert value(checkpoints, "b") == (1, 2.0)
    assert first.cost > 0


def test_training_goes_on_while_it_is_written_and_the_next_one_waits(checkpoints, savers, monkeypatch):
    go, write = threading.Event(), Folder.write

    def slow(self, name, *data):
        assert "manifest" in name or go.wait(20)
        write(self, name, *data)

    monkeypatch.setattr(Folder, "write", slow)
    first = savers[0]
    both(savers, 1)  # returns although nothing can be written
    first.check()  # nothing to say yet
    assert checkpoints.latest() is None
    after = threading.Thread(target=lambda: both(savers, 2))
    after.start()
    go.set()
    after.join(20)
    first.wait()
    assert value(checkpoints, "b") == (2, 2.0)


def test_what_it_raises_comes_back_later(checkpoints, savers):
    checkpoints.fence(1)  # a newer attempt begins
    both(savers, 1)
    savers[1].wait()
    with pytest.raises(Fenced):
        savers[0].wait()
    savers[0].wait()  # once
    assert checkpoints.latest() is None


def test_one_that_cannot_be_written_is_a_warning(checkpoints, savers, monkeypatch):
    write = Folder.write

    def full(self, name, *data):
        if name.endswith("/b"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, name, *data)

    monkeypatch.setattr(Folder, "write", full)
    both(savers, 1)
    with pytest.warns(RuntimeWarning, match=r"there is no checkpoint attempt-0000.*No space left"):
        savers[0].wait()
    assert checkpoints.latest() is None


def test_a_member_that_has_gone_is_not_waited_for_when_the_gang_ends(checkpoints, savers):
    savers[0].save(checkpoint(1, a=1))
    savers[0].close()
    assert not savers[0]._thread.is_alive()
    assert checkpoints.latest() is None


def test_a_copy_stays_as_it_is():
    weights, rows = torch.ones(3), [{"loss": 1.0}]
    view = weights[:2]
    nested = {"w": weights, "same": weights, "view": view, "n": np.ones(2), "rows": rows, "c": Counter(a=1), "t": (1,)}
    copy = copied(nested)
    weights.zero_()
    nested["n"][:] = 0
    rows[0]["loss"] = 2.0
    assert copy["w"].tolist() == [1, 1, 1]
    assert copy["same"] is copy["w"]
    assert copy["view"].tolist() == [1, 1]
    assert copy["n"].tolist() == [1, 1]
    assert copy["rows"] == [{"loss": 1.0}]
    assert type(copy["c"]) is Counter
    assert copy["t"] == (1,)


def test_a_copy_of_parameters_needs_no_gradients():
    parameter = torch.nn.Parameter(torch.ones(2))
    assert not copied({"p": parameter})["p"].requires_grad
