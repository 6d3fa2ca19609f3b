"""How the tests save and find checkpoints."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

from sparkdl.checkpoint.store import Checkpoints
from sparkdl.data.clock import Clock


def fenced(directory, attempt=0, **options):
    checkpoints = Checkpoints(directory, run="digits", **options)
    checkpoints.fence(attempt)
    return checkpoints


def at(step, epoch=0):
    return Clock(epoch, step, 32 * step)


def content(step, rank):
    return f"step {step} of rank {rank}".encode() * 50


def save(checkpoints, step, *, shards=3, attempt=0, **options):
    name = checkpoints.name(at(step), attempt)
    written = [checkpoints.write(name, f"{rank:05d}", content(step, rank)) for rank in range(shards)]
    checkpoints.commit(name, [future.result() for future in written], at(step), world_size=shards, **options)
    return name


def newest(checkpoints, **options):
    """The step of the newest checkpoint; None without one."""
    latest = checkpoints.latest(**options)
    return None if latest is None else latest[1].manifest.clock.step


def there(checkpoints):
    return sorted(name for name in checkpoints.folder.folders() if name != "attempts")


def flip(data):
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


def together(size, work):
    """The results of ``work(rank, all_gather_json)`` on a thread for each rank."""
    barrier, values = threading.Barrier(size, timeout=30), {}

    def worker(rank):
        def all_gather_json(key, value):
            values[key, rank] = json.loads(json.dumps(value))
            barrier.wait()
            return [values[key, other] for other in range(size)]

        return work(rank, all_gather_json)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(worker, range(size)))
