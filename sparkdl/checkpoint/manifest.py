"""What a checkpoint says about itself: the names of checkpoints, and the manifest that commits one.

    attempt-0002-epoch-0003-step-0000000123        checkpoints sort by time: attempts first, for a restarted
                                                   attempt goes back in steps but never in time

A manifest is JSON, and carries its own SHA-256: a flipped bit in a clock is found as one in a weight is.

    >>> name = Name(attempt=2, epoch=3, step=123)
    >>> str(name)
    'attempt-0002-epoch-0003-step-0000000123'
    >>> Name.parse(str(name)) == name, Name.parse("notes.txt")
    (True, None)
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sparkdl.errors import CheckpointDamaged, InvalidInput
from sparkdl.io.files import Buffer
from sparkdl.telemetry.clock import Clock

FORMAT = 1
MANIFEST = "manifest.json"

SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
"""Names that are a file's in its own directory, on any file system."""
_NAME = re.compile(r"attempt-(\d{4,})-epoch-(\d{4,})-step-(\d{10,})")


class UnknownFormat(CheckpointDamaged):
    """A manifest of another version of sparkdl."""


@dataclass(frozen=True, order=True)
class Name:
    """A checkpoint's place in the order of a run's checkpoints, and so its name.

    Attributes:
        attempt: the attempt that wrote it, from 0.
        epoch: epochs completed.
        step: steps completed.
    """

    attempt: int
    epoch: int
    step: int

    def __str__(self) -> str:
        return f"attempt-{self.attempt:04d}-epoch-{self.epoch:04d}-step-{self.step:010d}"

    @staticmethod
    def parse(text: str) -> Name | None:
        """The name that is written so; None where it is not a checkpoint's."""
        found = _NAME.fullmatch(text)
        name = None if found is None else Name(*map(int, found.groups()))
        return name if str(name) == text else None


@dataclass(frozen=True)
class Digest:
    """What a shard's bytes were when they were written.

    Attributes:
        shard: the shard's name, which is its file's name too.
        size: its length in bytes.
        sha256: the SHA-256 of its bytes, in hexadecimal.
    """

    shard: str
    size: int
    sha256: str

    @staticmethod
    def of(shard: str, *data: Buffer) -> Digest:
        """The digest of a shard's bytes, which may come in pieces."""
        hashed = hashlib.sha256()
        for piece in data:
            hashed.update(piece)
        return Digest(shard, sum(map(len, data)), hashed.hexdigest())

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Digest:
        """The digest whose fields are ``values``.

        Raises:
            ValueError: the shard's name is none, as a path that leads out of the directory is not.
        """
        if not SHARD.fullmatch(str(values["shard"])):
            raise ValueError(f"{values['shard']!r} is not a shard's name")
        return Digest(str(values["shard"]), int(values["size"]), str(values["sha256"]))

    def to_json(self) -> dict[str, Any]:
        """The digest as plain data, as it goes to rank 0."""
        return asdict(self)


@dataclass(frozen=True)
class Manifest:
    """What was committed.

    Attributes:
        name: the checkpoint's name.
        run: the identity of the run it belongs to.
        attempt: the attempt that wrote it.
        clock: how far the run had come.
        world_size: members of the gang that wrote it.
        shards: shard -> digest, in order of their names.
        pinned: whether it outlives ``keep`` while it is the newest that does.
        extra: anything else, as JSON.
    """

    name: str
    run: str
    attempt: int
    clock: Clock
    world_size: int
    shards: Mapping[str, Digest]
    pinned: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The manifest as a file.

        Raises:
            InvalidInput: ``extra`` is not JSON.
        """
        body = {**asdict(self), "shards": [digest.to_json() for digest in self.shards.values()]}
        try:
            document = {"format": FORMAT, "sha256": _seal(body), "manifest": body}
            return (json.dumps(document, indent=1) + "\n").encode()
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"the extra of {self.name} is not JSON: {error}. Pass str, numbers, lists, dicts."
            ) from None

    @staticmethod
    def from_bytes(data: bytes) -> Manifest:
        """The manifest in a file.

        Raises:
            CheckpointDamaged: it is not what was written; also UnknownFormat.
        """
        try:
            document = json.loads(data)
            found = document["format"]
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointDamaged(f"its manifest is damaged ({type(error).__name__}: {error})") from error
        if found != FORMAT:
            raise UnknownFormat(
                f"its manifest has format {found!r} and this version of sparkdl reads {FORMAT}; read it with the "
                "version that wrote it"
            )
        try:
            if document["sha256"] != _seal(document["manifest"]):
                raise ValueError("its SHA-256 differs from the one it carries")
            body = dict(document["manifest"])
            digests = [Digest.from_json(values) for values in body["shards"]]
            shards = {digest.shard: digest for digest in digests}
            return Manifest(**{**body, "clock": Clock(**body["clock"]), "shards": shards})
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointDamaged(f"its manifest is damaged ({type(error).__name__}: {error})") from error


def _seal(body: Mapping[str, Any]) -> str:
    # As it reads back: a tuple is a list by then, a key of another type a string.
    plain = json.loads(json.dumps(body))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
