"""What happens to checkpoints on their disk: one that is damaged is passed over, and a full disk costs no run."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import WorkerLost
from tests.chaos.runs import check_checkpoints, check_rows, fit, kept
from tests.faults import Fault, flip, newest, tear
from tests.hosts.hosts import until
from tests.training.test_resume import assert_alike

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]

MANIFEST = "manifest.json"


def shards(folder):
    return sorted(path for path in newest(folder).iterdir() if path.name != MANIFEST)


def torn(checkpoint):
    for shard in shards(checkpoint):
        tear(shard)


DAMAGE = {
    "a truncated shard": lambda folder: tear(shards(folder)[-1]),
    "a truncated shard of rank 0": lambda folder: tear(shards(folder)[0]),
    "a flipped bit in a shard": lambda folder: flip(shards(folder)[0]),
    "a flipped bit in the last shard": lambda folder: flip(shards(folder)[-1]),
    "a lost shard": lambda folder: shards(folder)[-1].unlink(),
    "half a manifest": lambda folder: tear(newest(folder) / MANIFEST),
    "a flipped bit in the manifest": lambda folder: flip(newest(folder) / MANIFEST, 200),
    "an empty manifest": lambda folder: os.truncate(newest(folder) / MANIFEST, 0),
    "all shards torn": torn,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_checkpoint_is_passed_over(pair, whole, tmp_path, damage):
    """It is damaged while nobody runs; the same call goes on from the one before it."""
    with pytest.raises(WorkerLost):
        fit(pair, tmp_path, Fault("kill", 1, 9, str(tmp_path / "mark")))
    before = newest(tmp_path).name
    damage(tmp_path)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        found = kept(tmp_path).latest()
    assert found is not None
    assert found[0] < before
    assert_alike(fit(pair, tmp_path), whole)
    check_rows(tmp_path)


@dataclass(frozen=True)
class Fills:
    """A hook that takes all room that is left in a folder after a step, and gives it back after a later one.

    It lets the checkpoint of the step before come to its end: that is written beside the steps.
    """

    folder: str
    full: int = 5
    empty: int = 9

    def on_step(self, run):
        path = os.path.join(self.folder, "filler")
        if run.clock.step == self.full:
            until(lambda: [*Path(self.folder).glob(f"*-step-{self.full - 1:010d}/manifest.json")], "a checkpoint")
            with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(bytes(1 << 12)):
                    continue
        elif run.clock.step == self.empty:
            os.unlink(path)


@pytest.fixture
def small_disk(tmp_path):
    """A file system with room for 2 MiB."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if os.getuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_costs_the_checkpoints_of_that_time(pair, whole, small_disk, tmp_path):
    events = []
    supervisor = Supervisor(pair, back_off=0)
    found = fit(supervisor, tmp_path, hooks=[Fills(str(small_disk))], listener=events.append)
    assert supervisor.failures == []
    assert_alike(found, whole)
    trouble = [event.payload["trouble"] for event in events if event.kind == "checkpoint"]
    assert any("No space left on device" in each[0] for each in trouble if each)
    check_checkpoints(tmp_path)


def test_a_full_disk_leaves_the_checkpoint_before(pair, whole, small_disk, tmp_path):
    """The disk is full from step 5 on, and a member is lost at step 9: the run goes on from what was written."""
    fault = Fault("kill", 1, 9, str(tmp_path / "mark"))
    with pytest.raises(WorkerLost):
        fit(pair, tmp_path, fault, hooks=[Fills(str(small_disk), empty=99)])
    check_checkpoints(tmp_path, 2, 4)
    (small_disk / "filler").unlink()
    assert_alike(fit(pair, tmp_path), whole)
    check_rows(tmp_path)


@pytest.mark.parametrize(("phase", "rank"), [("shard", 0), ("shard", 1), ("manifest", 0)])
def test_a_file_for_which_there_is_no_room_costs_a_warning(pair, whole, tmp_path, phase, rank):
    events = []
    supervisor = Supervisor(pair, back_off=0)
    fault = Fault("full", rank, 4, str(tmp_path / "mark"), phase)
    found = fit(supervisor, tmp_path, fault, listener=events.append)
    assert supervisor.failures == []
    assert_alike(found, whole)
    told = {event.clock["step"]: event.payload["trouble"] for event in events if event.kind == "checkpoint"}
    assert [step for step, trouble in told.items() if trouble] == [4]
    assert os.strerror(errno.ENOSPC) in told[4][0]
    check_checkpoints(tmp_path)
