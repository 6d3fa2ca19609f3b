"""Checkpoints are written while training continues: later changes are not in them, and errors are raised later."""

import errno
import os
import sys
import threading
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sparkdl.checkpoint.async_saver import Checkpoint, Saver, _Copier, copied
from sparkdl.cluster.group.world import World
from sparkdl.data.clock import Clock
from sparkdl.errors import Fenced
from sparkdl.io.files import Folder
from sparkdl.io.serialization import unpack_state
from tests.fake_gpu import GPU, MAIN, install


def save(savers, step):
    for saver, shard in zip(savers, "ab", strict=False):
        saver.save(Checkpoint(Clock(0, step, 0), {shard: {"x": torch.full((3,), float(step))}}))


@pytest.fixture
def savers(local):
    board, worlds = {}, [World(rank, 2) for rank in range(2)]
    for world in worlds:
        world.store = SimpleNamespace(
            set=board.__setitem__,
            multi_get=lambda keys: [board[key] for key in keys],
            check=lambda keys: board.keys() >= {*keys},
        )
    savers = [Saver(local, world) for world in worlds]
    yield savers
    for saver in savers:
        saver.close()


@pytest.fixture
def on_write(monkeypatch):
    """Makes a function run before each file is written."""

    def install(before):
        write = Folder.write
        monkeypatch.setattr(Folder, "write", lambda self, name, *data: (before(name), write(self, name, *data)))

    return install


def saved(checkpoints):
    """The newest checkpoint's step, and the value of each shard."""
    _, reader = checkpoints.latest()
    values = [unpack_state(reader.read(shard))["x"].tolist()[0] for shard in reader.manifest.shards]
    return reader.manifest.clock.step, *values


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have the priority of their process")
@pytest.mark.parametrize("forbidden", [False, True])
def test_writing_has_a_lower_priority_than_training_if_permitted(local, savers, monkeypatch, on_write, forbidden):
    def refuse(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if forbidden:
        monkeypatch.setattr(os, "setpriority", refuse)
    priorities, own = set(), os.getpriority(os.PRIO_PROCESS, 0)
    on_write(lambda name: priorities.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
    save(savers, 1)
    for saver in savers:
        saver.wait()
    assert priorities == {own if forbidden else max(own, 10)}
    assert os.getpriority(os.PRIO_PROCESS, 0) == own
    assert saved(local) == (1, 1.0, 1.0)


def test_training_continues_while_a_checkpoint_is_written_and_the_next_one_waits(local, savers, on_write):
    go = threading.Event()
    on_write(lambda name: None if "manifest" in name else go.wait(20))
    save(savers, 1)  # returns although nothing can be written
    savers[0].check()
    assert local.latest() is None
    after = threading.Thread(target=lambda: save(savers, 2))
    after.start()
    go.set()
    after.join(20)
    savers[0].wait()
    assert saved(local) == (2, 2.0, 2.0)
    assert savers[0].cost > 0


def test_error_of_a_commit_is_raised_once_and_later(local, savers):
    local.fence(1)  # a newer attempt begins
    save(savers, 1)
    savers[1].wait()
    with pytest.raises(Fenced):
        savers[0].wait()
    savers[0].wait()
    assert local.latest() is None


@pytest.mark.filterwarnings("ignore:checkpoint .* cannot be used")
def test_checkpoint_that_cannot_be_written_is_a_warning(local, savers, on_write):
    def full(name):
        if name.endswith("/b"):
            raise OSError(errno.ENOSPC, "No space left on device")

    on_write(full)
    save(savers, 1)
    with pytest.warns(RuntimeWarning, match=r"checkpoint attempt-0000.* was not saved: .*No space left"):
        savers[0].wait()
    assert local.latest() is None


@pytest.mark.filterwarnings("ignore:checkpoint .* cannot be used")
def test_checkpoint_needs_all_workers_and_close_does_not_wait_for_a_lost_one(local, savers):
    save(savers[:1], 1)
    savers[0].close()
    assert savers[0]._last.done()
    assert local.latest() is None


def test_copy_is_independent_and_keeps_sharing():
    weights, rows = torch.nn.Parameter(torch.ones(3)), [{"loss": 1.0}]
    state = {"w": weights, "same": weights, "view": weights[:2], "n": np.ones(2), "rows": rows, "c": Counter(a=1)}
    copy = copied(state | {"t": (1,)})
    weights.data.zero_()
    state["n"][:] = 0
    rows[0]["loss"] = 2.0
    assert copy["same"] is copy["w"]
    assert not copy["w"].requires_grad
    assert [copy[name].tolist() for name in ("w", "view", "n")] == [[1, 1, 1], [1, 1], [1, 1]]
    assert (copy["rows"], copy["t"], type(copy["c"])) == ([{"loss": 1.0}], (1,), Counter)


def test_a_gpus_copy_reaches_the_host_by_a_copy_stream(local, savers, monkeypatch):
    """The step loop copies within the GPU; it waits for no copy to the host."""
    gpu = install(monkeypatch)
    for saver in savers:
        saver._world.device = GPU
    save(savers, 1)
    savers[0].wait()
    assert saved(local) == (1, 1.0, 1.0)
    assert {entry[1] for entry in gpu.kinds("event")} == {MAIN}  # the copy within the GPU is complete
    assert {entry[1:] for entry in gpu.kinds("wait")} == {(side, MAIN) for side in ("side 1", "side 2")}
    assert {entry[1] for entry in gpu.kinds("set_device")} == {GPU}  # a new thread begins on GPU 0


def test_a_gpu_without_room_for_a_copy_copies_to_the_host(monkeypatch):
    monkeypatch.setattr("sparkdl.checkpoint.async_saver._room", lambda device: 100)
    copier = _Copier()
    tensors = [SimpleNamespace(is_cuda=True, device=GPU, nbytes=size) for size in (60, 50, 40)]
    for tensor in tensors:
        tensor.cpu, tensor.clone = lambda: "host", lambda: "GPU"
    assert [copier(tensor) for tensor in tensors] == ["GPU", "host", "GPU"]
