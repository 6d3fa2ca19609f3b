"""Members' processes that are started before they are needed: what takes long is to import torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sparkdl.process import MemberProcess

SPARES = 2


@contextmanager
def spares() -> Iterator[None]:
    """Let clusters take processes that run already, and start another one for each that they take."""
    waiting = [MemberProcess(-1) for _ in range(SPARES)]

    def take(rank: int) -> MemberProcess:
        waiting.append(MemberProcess(-1))
        member = waiting.pop(0)
        member.rank = rank
        return member

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sparkdl.cluster.MemberProcess", take)
        try:
            yield
        finally:
            for member in waiting:
                member.kill()
