"""Keeping the states of a gang's members in checkpoints, and going on from them.

    attempt begins   fence older attempts; see that all members have one directory; restore the newest checkpoint that
                     is sound and fits this gang and its data
    after a step     is it time? every member copies its state and trains on, while threads write it and rank 0 commits
    a stop           the driver leaves a word in the directory; all save at one step, and end

A checkpoint of an epoch's end fits every gang of the run, whatever its size and however its rows are dealt out. One
within an epoch fits a gang of the same size whose parts have come back the same (``sparkdl.feed.fingerprint``): else
the epoch is begun again, so that no row is left out or comes twice.

Members agree by way of the rendezvous store, never over the training group. Whether it is time is told by the steps,
the epochs, or rank 0's clock. A checkpoint that cannot be written (a full disk) costs a warning and not the run: the
one before it stays.
"""

from __future__ import annotations

from sparkdl.keeper.every import Every, young
from sparkdl.keeper.keeper import CheckpointKeeper

__all__ = ["CheckpointKeeper", "Every", "young"]
