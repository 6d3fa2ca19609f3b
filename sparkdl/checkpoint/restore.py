"""How the members of a gang come to restore the same checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkdl.checkpoint.manifest import Manifest
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.errors import CheckpointDamaged


def restore(
    checkpoints: Checkpoints,
    rank: int,
    agree: Callable[[str, Mapping[str, Any]], list[dict[str, Any]]],
    pick: Callable[[Manifest], Sequence[str]],
    *,
    accept: Callable[[Manifest], bool] | None = None,
    key: str = "restore",
) -> tuple[Manifest, dict[str, bytes]] | None:
    """Restore the newest checkpoint of which every member can read what it needs; all members call it together.

    Args:
        checkpoints: the run's.
        rank: this member's.
        agree: gives every member's value to every member, such as ``World.agree``.
        pick: the shards that this member needs; the manifest says what there is, and how many members wrote it.
        accept: asked on rank 0: whether a checkpoint can be gone on from; all by default.
        key: what the keys of ``agree`` begin with; another one for each call in a gang.

    Returns:
        The manifest, the same on all members, and the shards' bytes, checked; None, on all, where there is none.
    """
    before: str | None = None
    while True:
        found = _newest(checkpoints, before, accept) if rank == 0 else None
        name = agree(f"{key} before {before}", {"name": found})[0]["name"]
        if name is None:
            return None
        trouble, restored = None, None
        try:
            reader = checkpoints.open(name)
            restored = reader.manifest, {shard: reader.read(shard) for shard in pick(reader.manifest)}
        except CheckpointDamaged as damaged:
            trouble = damaged.message
        troubles = [answer["trouble"] for answer in agree(f"{key} {name}", {"trouble": trouble})]
        if restored is not None and not any(troubles):
            return restored
        if rank == 0:
            first = next(filter(None, troubles))
            warnings.warn(f"{first} The one before it is taken, if there is one.", RuntimeWarning, stacklevel=2)
        before = name


def _newest(checkpoints: Checkpoints, before: str | None, accept: Callable[[Manifest], bool] | None) -> str | None:
    while (found := checkpoints.latest(verify=False, before=before)) is not None:
        before, reader = found
        if accept is None or accept(reader.manifest):
            return before
    return None
