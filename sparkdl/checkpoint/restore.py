"""Finds the same checkpoint on all workers of a gang, if it can resume from this checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl.checkpoint.manifest import Manifest
from sparkdl.checkpoint.reader import Reader
from sparkdl.checkpoint.store import NEXT, Checkpoints
from sparkdl.data.fingerprint import Fingerprint, total
from sparkdl.errors import CheckpointDamaged, InvalidInput
from sparkdl.telemetry.emit import notify


def restore(
    checkpoints: Checkpoints,
    rank: int,
    agree: Callable[[str, Mapping[str, Any]], list[dict[str, Any]]],
    pick: Callable[[Manifest], Sequence[str]],
    *,
    accept: Callable[[Manifest], bool] = lambda manifest: True,
) -> Reader | None:
    """Find the newest checkpoint whose shards every worker can read; all workers call it together.

    ``agree`` gives every worker's value to every worker, such as ``World.all_gather_json``. ``pick`` returns the shards
    that this worker needs. ``accept``, called on rank 0, tells whether the gang can resume from a checkpoint.

    Returns:
        The same checkpoint on all workers, which have verified their shards and hold none in memory: a worker that
        overwrites live tensors can no longer resume from an older one. None without a usable checkpoint.
    """
    before: str | None = None
    while True:
        newest = _newest(checkpoints, before, accept) if rank == 0 else None
        name = agree(f"restore before {before}", {"name": newest})[0]["name"]
        if name is None:
            return None
        trouble = reader = None
        try:
            reader = checkpoints.open(name)
            reader.verify(pick(reader.manifest))
        except CheckpointDamaged as damaged:
            trouble = damaged.message
        troubles = [answer["trouble"] for answer in agree(f"restore {name}", {"trouble": trouble})]
        if reader is not None and not any(troubles):
            return reader
        if rank == 0:
            warnings.warn(f"{next(filter(None, troubles))} {NEXT}", RuntimeWarning, stacklevel=2)
        before = name


def _newest(checkpoints: Checkpoints, before: str | None, accept: Callable[[Manifest], bool]) -> str | None:
    while (newest := checkpoints.latest(verify=False, before=before)) is not None:
        before, reader = newest
        if accept(reader.manifest):
            return before
    return None


@dataclass(frozen=True)
class Compatibility:
    """The gang's side of a comparison with checkpoints; used on rank 0."""

    directory: str  # of the checkpoints, for messages
    writer: str  # of this fit's checkpoints
    size: int  # workers of the gang
    fingerprints: Sequence[str]  # of each shard

    def newest(self, manifest: Manifest) -> None:
        """Check the newest checkpoint, and warn if the gang cannot resume from it.

        Raises InvalidInput if another fit wrote it, on other data.
        """
        saved: Sequence[str] = manifest.extra["shards"]
        theirs, ours = (total([Fingerprint.parse(text) for text in texts]) for texts in (saved, self.fingerprints))
        if theirs != ours and manifest.extra["writer"] != self.writer:
            raise InvalidInput(
                f"{self.directory} has checkpoints of a run on other data: {theirs[0]} rows, and this run "
                f"has {ours[0]} or other values. Take another runDir. If the query gives other rows "
                "each time, write its result to a table and train on that."
            )
        if self.accepts(manifest):
            return
        where = f"step {manifest.clock.step} of epoch {manifest.clock.epoch + 1}"
        if manifest.world_size != self.size:
            what = f"the gang has {self.size} workers and had {manifest.world_size} at {where}"
        else:
            pairs = zip(saved, self.fingerprints, strict=True)
            changed = [str(shard) for shard, (old, new) in enumerate(pairs) if old != new]
            what = (
                f"the query returned other rows for shard{'s' * (len(changed) > 1)} {', '.join(changed)} than "
                f"before {where}: it is not deterministic, as with rand() without a seed or without an order. Set "
                "idCol, or write the rows to a table and train on that"
            )
        notify(f"{what}; sparkdl restarts the epoch.")

    def accepts(self, manifest: Manifest) -> bool:
        """Whether the gang can resume from the checkpoint."""
        alike = manifest.world_size == self.size and list(manifest.extra["shards"]) == list(self.fingerprints)
        return manifest.pinned or alike
