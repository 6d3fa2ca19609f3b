"""Messages with other workers, and ``PeerLost``, the error of a lost worker, which is never taken for a first cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from sparkdl.errors import PeerLost


@contextmanager
def reaching_peers() -> Iterator[None]:
    """Convert a failure to reach another worker into ``PeerLost``, which is never taken for the first cause."""
    try:
        yield
    except RuntimeError as error:  # as are all errors of torch.distributed
        if not is_peer_failure(error):
            raise
        raise PeerLost(f"another worker is unreachable: {error}") from error


def is_peer_failure(error: BaseException) -> bool:
    """Whether an error, also one of user code, only reports the loss of another worker."""
    signs = ("Connection closed by peer", "Connection reset by peer", "Connection refused", "Broken pipe", "Timed out")
    text = str(error)
    # Gloo's errors are plain RuntimeErrors, which begin with the path of their source.
    of_gloo = isinstance(error, RuntimeError) and "gloo/" in text and any(sign in text for sign in signs)
    return isinstance(error, (PeerLost, dist.DistError)) or of_gloo


@dataclass(frozen=True)
class PendingMessages:
    """Messages that were started together; ``works`` are the pending works of torch."""

    works: Sequence[Any]

    def wait(self) -> None:
        """Return when all are done; raises PeerLost if another worker is unreachable."""
        with reaching_peers():
            for work in self.works:
                work.wait()
