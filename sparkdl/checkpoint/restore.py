"""Restores the same checkpoint on all workers of a gang."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkdl.checkpoint.manifest import Manifest
from sparkdl.checkpoint.store import NEXT, Checkpoints
from sparkdl.errors import CheckpointDamaged


def restore(
    checkpoints: Checkpoints,
    rank: int,
    agree: Callable[[str, Mapping[str, Any]], list[dict[str, Any]]],
    pick: Callable[[Manifest], Sequence[str]],
    *,
    accept: Callable[[Manifest], bool] = lambda manifest: True,
) -> tuple[Manifest, dict[str, bytes]] | None:
    """Restore the newest checkpoint whose shards every worker can read; all workers call it together.

    ``agree`` gives every worker's value to every worker, such as ``World.all_gather_json``. ``pick`` returns the shards
    that this worker needs. ``accept``, called on rank 0, tells whether the gang can resume from a checkpoint.

    Returns:
        The manifest, equal on all workers, and the verified bytes of the shards; None without a usable checkpoint.
    """
    before: str | None = None
    while True:
        newest = _newest(checkpoints, before, accept) if rank == 0 else None
        name = agree(f"restore before {before}", {"name": newest})[0]["name"]
        if name is None:
            return None
        trouble = restored = None
        try:
            reader = checkpoints.open(name)
            restored = reader.manifest, {shard: reader.read(shard) for shard in pick(reader.manifest)}
        except CheckpointDamaged as damaged:
            trouble = damaged.message
        troubles = [answer["trouble"] for answer in agree(f"restore {name}", {"trouble": trouble})]
        if restored is not None and not any(troubles):
            return restored
        if rank == 0:
            warnings.warn(f"{next(filter(None, troubles))} {NEXT}", RuntimeWarning, stacklevel=2)
        before = name


def _newest(checkpoints: Checkpoints, before: str | None, accept: Callable[[Manifest], bool]) -> str | None:
    while (newest := checkpoints.latest(verify=False, before=before)) is not None:
        before, reader = newest
        if accept(reader.manifest):
            return before
    return None
