"""Checkpoints from which a gang can resume."""

from __future__ import annotations

import warnings

import pytest

from sparkdl.checkpoint.compatibility import Compatibility
from sparkdl.checkpoint.manifest import Digest, Manifest
from sparkdl.data.fingerprint import Fingerprint
from sparkdl.errors import InvalidInput
from sparkdl.telemetry.clock import Clock


def gang(*shards):
    return Compatibility("runs/checkpoints", "us", len(shards), [str(Fingerprint(*each)) for each in shards])


OURS = gang((10, 3, 7), (11, 4, 8))
OTHER_SIZE = gang((7, 1, 1), (7, 2, 2), (7, 4, 4))
MOVED = gang((10, 3, 7), (11, 4, 9))
CHANGED = gang((10, 5, 7), (11, 4, 9))


def manifest(*, pinned=False, **changes):
    shards = {"00000": Digest.of("00000", b"")}
    return Manifest("a name", "a run", 0, Clock(1, 7, 70), OURS.size, shards, pinned, OURS.extra() | changes)


def test_same_gang_resumes_within_an_epoch():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        OURS.newest(manifest())
    assert OURS.accepts(manifest())


@pytest.mark.parametrize(
    ("compatibility", "message"),
    [
        (OTHER_SIZE, "the gang has 3 workers and had 2 at step 7 of epoch 2; sparkdl restarts the epoch"),
        (MOVED, "the query returned other rows for shard 1 than before step 7 of epoch 2: .*Set idCol"),
        (CHANGED, "the query returned other rows for shards 0, 1 than"),
    ],
    ids=["another size", "another order", "other rows in the same fit"],
)
def test_other_gang_restarts_the_epoch(compatibility, message):
    with pytest.warns(RuntimeWarning, match=message):
        compatibility.newest(manifest())
    assert not compatibility.accepts(manifest())
    assert compatibility.accepts(manifest(pinned=True))


def test_other_data_in_another_fit_raise():
    for theirs in (manifest(writer="them"), manifest(writer="them", pinned=True)):
        with pytest.raises(InvalidInput, match=r"runs/checkpoints has checkpoints of a run on other data: 21 rows"):
            CHANGED.newest(theirs)
    with pytest.warns(RuntimeWarning, match="restarts the epoch"):
        OTHER_SIZE.newest(manifest(writer="them"))  # the same rows, split otherwise
