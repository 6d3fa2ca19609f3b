"""Whether a gang can resume from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkdl.checkpoint.manifest import Manifest
from sparkdl.data.fingerprint import Fingerprint, total
from sparkdl.errors import InvalidInput
from sparkdl.telemetry.emit import notify


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
