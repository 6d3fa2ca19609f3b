"""Atomic, versioned, sharded state on any ``pyarrow.fs`` filesystem: local, HDFS, S3, GCS.

    checkpoints/attempts/0002.json                                        attempt 2 has begun, and who announced it
    checkpoints/attempt-0002-epoch-0003-step-0000000123/00000             a shard for each member, opaque bytes
    checkpoints/attempt-0002-epoch-0003-step-0000000123/manifest.json     written last: this is the commit

    >>> import tempfile
    >>> from sparkdl.telemetry.clock import Clock
    >>> checkpoints = Checkpoints(tempfile.mkdtemp(), run="a1b2c3")
    >>> attempt = checkpoints.next_attempt()  # the driver, before each attempt
    >>> checkpoints.fence(attempt)
    >>> clock = Clock(epoch=1, step=10, samples=640)
    >>> name = checkpoints.name(clock, attempt)  # every member, in parallel
    >>> written = [checkpoints.write(name, f"{rank:05d}", bytes(100)) for rank in range(2)]
    >>> digests = [future.result() for future in written]
    >>> checkpoints.commit(name, digests, clock, world_size=2)  # rank 0, once all have written
    >>> found, reader = checkpoints.latest()  # another attempt, another day
    >>> found, reader.manifest.clock.step, len(reader.read("00001"))
    ('attempt-0000-epoch-0001-step-0000000010', 10, 100)

A checkpoint exists once its manifest does. Locally and on HDFS the manifest is renamed into place (and locally every
file and new folder is synced first, so that a power cut cannot keep the manifest and lose a shard); on an object store
a ``PUT`` shows an object whole or not at all. So a crash at any point leaves checkpoints that are complete and one
that is not there. What damages a committed one later (a flipped bit, a lost file) is found by size and SHA-256, of
every shard and of the manifest itself, and the checkpoint before it is taken. Nothing is ever unpickled.

What a process of an older attempt may still do, and why that is harmless: ``sparkdl.checkpoint.fencing``.

**Who verifies.** ``latest()`` reads and checks every shard: right for one reader. Where N members restore, ``restore``
lets rank 0 pick by manifest, presence and size, and each member read and check the shards that it needs; if any finds
damage, all go on to the one before.

    >>> manifest, shards = restore(checkpoints, 0, lambda key, value: [value], lambda manifest: ["00000"])
    >>> manifest.clock.step, len(shards["00000"])
    (10, 100)
"""

from __future__ import annotations

from sparkdl.checkpoint.manifest import Digest, Manifest
from sparkdl.checkpoint.reader import Reader
from sparkdl.checkpoint.restore import restore
from sparkdl.checkpoint.store import Checkpoints

__all__ = ["Checkpoints", "Digest", "Manifest", "Reader", "restore"]
