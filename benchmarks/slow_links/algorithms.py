"""The sum of a tensor by a ring, as gloo does it, by recursive halving and doubling, and by a binomial tree.

R. Thakur, R. Rabenseifner and W. Gropp, Optimization of collective communication operations in MPICH, 2005.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from sparkdl.cluster.group.world import Group, World
from sparkdl.data.shard import Shard


def ring(group: Group, tensor: Tensor) -> None:
    """Gloo's own all-reduce."""
    group.sum_(tensor)


def halving_doubling(group: Group, tensor: Tensor) -> None:
    """Halve the part that a worker sums until each has ``1/N``, then double it; ``N`` is a power of two."""
    part, parts, far = tensor, [], group.size // 2
    while far:
        mine, other = part.chunk(2) if group.rank & far == 0 else reversed(part.chunk(2))
        received = torch.empty_like(mine)
        swap(group, other, received, group.rank ^ far)
        part = mine.add_(received)
        parts.append((mine, other))
        far //= 2
    for far, (mine, other) in enumerate(reversed(parts)):
        swap(group, mine, other, group.rank ^ 1 << far)


def tree(group: Group, tensor: Tensor) -> None:
    """Send the sums of subtrees towards rank 0, and the whole sum back."""
    children, far = [], 1
    while far < group.size and group.rank & far == 0:
        children.append(group.rank + far)
        far *= 2
    received = torch.empty_like(tensor)
    for child in children:
        dist.irecv(received, group=group.handle, group_src=child).wait()  # type: ignore[union-attr]
        tensor.add_(received)
    if group.rank:
        answer = dist.irecv(tensor, group=group.handle, group_src=group.rank - far)
        dist.isend(tensor.clone(), group=group.handle, group_dst=group.rank - far).wait()  # type: ignore[union-attr]
        answer.wait()  # type: ignore[union-attr]
    for child in reversed(children):
        dist.isend(tensor, group=group.handle, group_dst=child).wait()  # type: ignore[union-attr]


def swap(group: Group, sent: Tensor, received: Tensor, peer: int) -> None:
    """Send a tensor to a worker and receive one."""
    works = [
        dist.irecv(received, group=group.handle, group_src=peer),
        dist.isend(sent, group=group.handle, group_dst=peer),
    ]
    for work in works:
        work.wait()  # type: ignore[union-attr]


ALGORITHMS: dict[str, Callable[[Group, Tensor], None]] = {
    "ring (gloo)": ring,
    "halving and doubling": halving_doubling,
    "tree": tree,
}


@dataclass(frozen=True)
class AllReduces:
    """A worker's sums of fp32 tensors by each algorithm, by turns.

    Attributes:
        sizes: of the tensors, in bytes.
        rounds: that count; one more comes first.
    """

    sizes: Sequence[int]
    rounds: int

    def __call__(self, world: World, shard: Shard | None) -> dict[tuple[int, str], list[float]]:
        """Size and algorithm -> seconds of each round.

        Raises:
            ValueError: an algorithm returned a wrong sum.
        """
        group = world.group()
        total = group.size * (group.size + 1) / 2
        taken: dict[tuple[int, str], list[float]] = {(size, name): [] for size in self.sizes for name in ALGORITHMS}
        for size in self.sizes:
            for number in range(self.rounds + 1):
                for name in [*ALGORITHMS] if number % 2 == 0 else reversed(ALGORITHMS):
                    tensor = torch.full((size // 4,), group.rank + 1.0)
                    group.sum_(torch.zeros(1))
                    start = time.perf_counter()
                    ALGORITHMS[name](group, tensor)
                    taken[size, name].append(time.perf_counter() - start)
                    if not bool((tensor == total).all()):
                        raise ValueError(f"the sum by {name} of {size} bytes is {tensor}; expected {total}.")
        return {key: seconds[1:] for key, seconds in taken.items()}
