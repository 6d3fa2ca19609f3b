"""Reads a committed checkpoint, and verifies it."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sparkdl.checkpoint.manifest import Digest, Manifest
from sparkdl.errors import CheckpointDamaged, InvalidInput
from sparkdl.io.files import Folder

_CHUNK = 1 << 23  # bytes hashed at a time


@dataclass(frozen=True)
class Reader:
    """A committed checkpoint."""

    folder: Folder
    manifest: Manifest

    def read(self, shard: str) -> bytes:
        """Read a shard's bytes; raises CheckpointDamaged if they differ from the committed ones."""
        digest = self._digest(shard)
        with self._guarded(shard):
            data = self.folder.read(shard)
            self._compare(digest, len(data), hashlib.sha256(data).hexdigest())
        return data

    def verify(self, shards: Collection[str] | None = None) -> None:
        """Raise CheckpointDamaged if a shard, by default any, differs from the committed one; reads 8 MiB at a time."""
        for shard in self.manifest.shards if shards is None else shards:
            digest = self._digest(shard)
            with self._guarded(shard), self.folder.open(shard) as stream:
                size, hashed = 0, hashlib.sha256()
                while chunk := stream.read(_CHUNK):
                    size += len(chunk)
                    hashed.update(chunk)
                self._compare(digest, size, hashed.hexdigest())

    def check_presence(self) -> None:
        """Raise CheckpointDamaged if a shard is missing or has another size; one listing, no reads."""
        sizes = self.folder.sizes("")
        for shard, digest in self.manifest.shards.items():
            if shard not in sizes:
                raise self._damaged(shard, "is missing")
            self._compare(digest, sizes[shard], digest.sha256)

    def _digest(self, shard: str) -> Digest:
        if shard not in self.manifest.shards:
            shards = ", ".join(self.manifest.shards)
            raise InvalidInput(f"checkpoint {self.manifest.name} has no shard {shard!r}; it has {shards}.")
        return self.manifest.shards[shard]

    def _compare(self, digest: Digest, size: int, sha256: str) -> None:
        if size != digest.size:
            raise self._damaged(digest.shard, f"has {size} bytes; expected {digest.size}")
        if sha256 != digest.sha256:
            raise self._damaged(digest.shard, f"has SHA-256 {sha256}; expected {digest.sha256}")

    @contextmanager
    def _guarded(self, shard: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise self._damaged(shard, "is missing") from error
        except OSError as error:
            if error.errno != errno.EIO:
                raise  # an unreachable filesystem does not prove damage
            raise self._damaged(shard, f"cannot be read: {error}") from error

    def _damaged(self, shard: str, what: str) -> CheckpointDamaged:
        return damage(self.folder, f"its shard {shard} {what}")


def damage(folder: Folder, what: str) -> CheckpointDamaged:
    """The error for an unusable checkpoint."""
    return CheckpointDamaged(f"checkpoint {folder.path} cannot be used: {what}.")
