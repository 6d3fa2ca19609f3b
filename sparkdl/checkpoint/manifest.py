"""Names of checkpoints, and the manifest that commits one.

Names sort by time, attempts first, since a restarted attempt may repeat steps.
A manifest is JSON and carries its own SHA-256, which detects damage.

    >>> name = CheckpointName(attempt=2, epoch=3, step=123)
    >>> str(name)
    'attempt-0002-epoch-0003-step-0000000123'
    >>> CheckpointName.parse(str(name)) == name, CheckpointName.parse("notes.txt")
    (True, None)
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sparkdl.data.clock import Clock
from sparkdl.errors import CheckpointDamaged, InvalidInput
from sparkdl.io.files import Buffer

FORMAT = 3
MANIFEST = "manifest.json"

SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
"""Names that are valid file names on any filesystem."""
_NAME = re.compile(r"attempt-(\d{4,})-epoch-(\d{4,})-step-(\d{10,})")


@dataclass(frozen=True, order=True)
class CheckpointName:
    """The name of a checkpoint, ordered by time within a run: the attempt that wrote it, completed epochs and steps."""

    attempt: int
    epoch: int
    step: int

    def __str__(self) -> str:
        return f"attempt-{self.attempt:04d}-epoch-{self.epoch:04d}-step-{self.step:010d}"

    @staticmethod
    def parse(text: str) -> CheckpointName | None:
        """Parse a name; None if ``text`` is no checkpoint's name."""
        match = _NAME.fullmatch(text)
        name = match and CheckpointName(*map(int, match.groups()))
        return name if str(name) == text else None


@dataclass(frozen=True)
class Digest:
    """Size in bytes and SHA-256 in hexadecimal of a shard as written; ``shard`` is also the file's name."""

    shard: str
    size: int
    sha256: str

    @staticmethod
    def of(shard: str, *data: Buffer) -> Digest:
        """The digest of a shard's bytes, in one or several chunks."""
        hashed = hashlib.sha256()
        for piece in data:
            hashed.update(piece)
        return Digest(shard, sum(map(len, data)), hashed.hexdigest())

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Digest:
        """Restore a digest from its fields; raises ValueError for a shard name such as a path out of the directory."""
        shard = str(values["shard"])
        if not SHARD.fullmatch(shard):
            raise ValueError(f"{shard!r} is not a shard's name")
        return Digest(shard, int(values["size"]), str(values["sha256"]))


@dataclass(frozen=True)
class Manifest:
    """The contents of a committed checkpoint."""

    name: str
    run: str
    attempt: int
    clock: Clock
    world_size: int
    shards: Mapping[str, Digest]  # sorted by name
    pinned: bool = False  # whether it survives ``keep`` while it is the newest pinned one
    extra: Mapping[str, Any] = field(default_factory=dict)  # JSON

    def to_bytes(self) -> bytes:
        """Serialize the manifest; raises InvalidInput if ``extra`` is not JSON."""
        body = {**asdict(self), "shards": [asdict(digest) for digest in self.shards.values()]}
        try:
            document = {"format": FORMAT, "sha256": _seal(body), "manifest": body}
            return (json.dumps(document, indent=1) + "\n").encode()
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"extra of {self.name} is not JSON: {error}.") from None

    @staticmethod
    def from_bytes(data: bytes) -> Manifest:
        """Parse a manifest.

        Raises CheckpointDamaged if its hash or its fields are wrong, InvalidInput for another version of sparkdl.
        """
        try:
            document = json.loads(data)
            if document["format"] != FORMAT:
                raise InvalidInput(
                    f"its manifest has format {document['format']!r}, and this version of sparkdl reads {FORMAT}. Take "
                    "another runDir, or resume with the version that wrote it."
                )
            if document["sha256"] != _seal(document["manifest"]):
                raise ValueError("its SHA-256 is wrong")
            body = dict(document["manifest"])
            shards = {digest.shard: digest for digest in map(Digest.from_json, body["shards"])}
            return Manifest(**{**body, "clock": Clock(**body["clock"]), "shards": shards})
        except InvalidInput:
            raise
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointDamaged(f"its manifest is damaged ({type(error).__name__}: {error})") from error


def _seal(body: Mapping[str, Any]) -> str:
    # Hash the parsed form: JSON turns tuples into lists, and keys into strings.
    plain = json.loads(json.dumps(body))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
