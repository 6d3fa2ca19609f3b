"""Which checkpoints a gang can go on from."""

from __future__ import annotations

import warnings

import pytest

from sparkdl.checkpoint.compatibility import Compatibility
from sparkdl.checkpoint.manifest import Digest, Manifest
from sparkdl.data.fingerprint import Fingerprint
from sparkdl.errors import InvalidInput
from sparkdl.telemetry.clock import Clock


def parts(*given):
    return [str(Fingerprint(*each)) for each in given]


PARTS = parts((10, 3, 7), (11, 4, 8))
OURS = Compatibility("runs/checkpoints", "us", 2, PARTS)


def manifest(fitting=OURS, *, pinned=False, **changes):
    extra = fitting.extra() | changes
    shards = {"00000": Digest.of("00000", b"")}
    return Manifest("a name", "a run", 0, Clock(1, 7, 70), fitting.size, shards, pinned, extra)


def test_the_same_gang_goes_on_within_an_epoch():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        OURS.newest(manifest())
    assert OURS.accepts(manifest())


OTHER_SIZE = Compatibility("runs/checkpoints", "us", 3, parts((7, 1, 1), (7, 2, 2), (7, 4, 4)))
MOVED = Compatibility("runs/checkpoints", "us", 2, parts((10, 3, 7), (11, 4, 9)))
CHANGED = Compatibility("runs/checkpoints", "us", 2, parts((10, 5, 7), (11, 4, 9)))


@pytest.mark.parametrize(
    ("fitting", "said"),
    [
        (OTHER_SIZE, "the gang has 3 members and had 2 at step 7 of epoch 2; the epoch is begun again"),
        (MOVED, "the rows of part 1 have come back different .* before step 7 of epoch 2: .*Give idCol"),
        (CHANGED, "the rows of parts 0, 1 have come back different"),
    ],
    ids=["another size", "another order", "other rows in the same fit"],
)
def test_another_gang_begins_the_epoch_again(fitting, said):
    with pytest.warns(RuntimeWarning, match=said):
        fitting.newest(manifest())
    assert not fitting.accepts(manifest())
    assert fitting.accepts(manifest(pinned=True))


def test_other_data_in_another_fit_are_refused():
    theirs = manifest(writer="them")
    with pytest.raises(InvalidInput, match=r"runs/checkpoints has checkpoints of a run on other data: 21 rows"):
        CHANGED.newest(theirs)
    with pytest.raises(InvalidInput, match="on other data"):
        CHANGED.newest(manifest(writer="them", pinned=True))
    with pytest.warns(RuntimeWarning, match="epoch is begun again"):
        OTHER_SIZE.newest(theirs)  # the same rows, dealt out otherwise
