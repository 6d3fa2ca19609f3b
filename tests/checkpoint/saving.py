"""What the tests of checkpoints share: how they are saved and found."""

from __future__ import annotations

from typing import Any

from sparkdl.checkpoint.store import Checkpoints
from sparkdl.telemetry.clock import Clock


def fenced(directory: str, attempt: int = 0, **options: Any) -> Checkpoints:
    checkpoints = Checkpoints(directory, run="digits", **options)
    checkpoints.fence(attempt)
    return checkpoints


def at(step: int, epoch: int = 0) -> Clock:
    return Clock(epoch, step, 32 * step)


def content(step: int, rank: int) -> bytes:
    return f"step {step} of rank {rank}".encode() * 50


def save(checkpoints: Checkpoints, step: int, *, shards: int = 3, attempt: int = 0, **options: Any) -> str:
    name = checkpoints.name(at(step), attempt)
    written = [checkpoints.write(name, f"{rank:05d}", content(step, rank)) for rank in range(shards)]
    digests = [future.result() for future in written]
    checkpoints.commit(name, digests, at(step), world_size=shards, **options)
    return name


def newest(checkpoints: Checkpoints, **options: Any) -> int | None:
    """The step of the newest checkpoint."""
    found = checkpoints.latest(**options)
    return None if found is None else found[1].manifest.clock.step


def there(checkpoints: Checkpoints) -> list[str]:
    return sorted(name for name in checkpoints.folder.folders() if name != "attempts")


def flip(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
