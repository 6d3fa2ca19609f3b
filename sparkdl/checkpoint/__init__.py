"""Atomic, versioned, sharded checkpoints on any ``pyarrow.fs`` filesystem: local, HDFS, S3, GCS.

    checkpoints/attempts/0002.json                                        announcement of attempt 2
    checkpoints/attempt-0002-epoch-0003-step-0000000123/00000             a shard per worker, opaque bytes
    checkpoints/attempt-0002-epoch-0003-step-0000000123/manifest.json     written last: this is the commit

    >>> import tempfile
    >>> from sparkdl.data.clock import Clock
    >>> checkpoints = Checkpoints(tempfile.mkdtemp(), run="a1b2c3")
    >>> attempt = checkpoints.next_attempt()  # the driver, before each attempt
    >>> checkpoints.fence(attempt)
    >>> clock = Clock(epoch=1, step=10, samples=640)
    >>> name = checkpoints.name(clock, attempt)  # every worker, in parallel
    >>> written = [checkpoints.write(name, f"{rank:05d}", bytes(100)) for rank in range(2)]
    >>> digests = [future.result() for future in written]
    >>> checkpoints.commit(name, digests, clock, world_size=2)  # rank 0, once all have written
    >>> found, reader = checkpoints.latest()  # a later attempt
    >>> found, reader.manifest.clock.step, len(reader.read("00001"))
    ('attempt-0000-epoch-0001-step-0000000010', 10, 100)

A checkpoint exists once its manifest does. Local filesystems and HDFS rename the manifest into place; object stores
show a ``PUT`` entirely or not at all. Local files and new folders are synced first, so a power cut cannot keep the
manifest and lose a shard. Sizes and SHA-256 of the shards and the manifest detect later damage; then an older
checkpoint is used. Nothing is ever unpickled. ``sparkdl.checkpoint.fencing`` lists what older attempts can still do.

``latest()`` reads and verifies every shard. With ``restore``, rank 0 picks by manifest, presence and size, and each
worker verifies the shards it reads; if one is damaged, all workers try the next older checkpoint.

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
