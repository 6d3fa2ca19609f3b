"""Bytes and messages of collectives: pure equations, without a process group.

``N`` workers run on ``H`` hosts and combine ``M`` bytes. One message takes ``alpha`` seconds, and a host's link carries
``B`` bytes a second in each direction. If every worker has a host of its own, the seconds are

    ring all-reduce                  2 (N - 1) alpha + 2 (N - 1)/N M/B
    reduce-scatter                     (N - 1) alpha +   (N - 1)/N M/B
    all-gather of M bytes of each              alpha +   (N - 1)   M/B
    all-to-all of M/N bytes                    alpha +   (N - 1)/N M/B
    reduce to one worker by a ring           N alpha + 2 (N - 1)/N M/B
    broadcast by a tree            ceil(log2 N) (alpha + M/B)
    exchange with k neighbours               alpha + k M/B
    S parameter servers                    2 alpha + 2 N M/(S B)
    a parameter server on each worker      2 alpha + 2 (N - 1)/N M/B

In an all-gather or all-to-all, workers send to all others at once. If several hosts have several workers, an all-gather
is a ring with ``N - 1`` messages, as ``Group.all_gather_into`` does it. NCCL chooses its own algorithms.

Workers of one host share its link. A ring in the order of hosts crosses each link once in each direction. If ranks
alternate between hosts, each of a host's ``n`` workers sends over the link: it carries ``n`` times the bytes.

P. Patarasuk and X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from math import ceil, log2

from sparkdl.io.fields import CheckedFields, NonNegative

Hosts = Sequence[Hashable]
"""The host of each worker, in rank order."""


@dataclass(frozen=True)
class Traffic(CheckedFields):
    """The traffic of one or several collectives, one after the other.

    Attributes:
        bytes: bytes that a worker sends to the others, the mean over the workers.
        messages: messages between hosts that wait for each other; each costs one latency.
        link_bytes: bytes that the busiest host sends, or receives, over its link.
        local_messages: messages inside a host that wait for each other.
        local_bytes: bytes that the workers of the busiest host send to each other.
    """

    bytes: NonNegative = 0.0
    messages: NonNegative = 0.0
    link_bytes: NonNegative = 0.0
    local_messages: NonNegative = 0.0
    local_bytes: NonNegative = 0.0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: float) -> Traffic:
        """The traffic of ``times`` repetitions; a fraction is the mean of a step that repeats it less often."""
        return Traffic(*(times * value for value in astuple(self)))


def total(parts: Iterable[Traffic]) -> Traffic:
    """The sum of traffic."""
    return sum(parts, start=Traffic())


def at_once(parts: Iterable[Traffic]) -> Traffic:
    """The traffic of collectives that start together: they share the link, and their messages wait side by side."""
    parts = [*parts]
    messages, local = max(part.messages for part in parts), max(part.local_messages for part in parts)
    return replace(total(parts), messages=messages, local_messages=local)


def one_per_host(workers: int) -> Hosts:
    """Hosts of workers that share no link."""
    return range(workers)


def all_reduce(size: float, hosts: Hosts) -> Traffic:
    """The sum of ``size`` bytes by a ring in rank order, as gloo does it."""
    workers = len(hosts)
    sent = 2 * (workers - 1) * size // workers  # bytes, so that a worker's counts add up
    return replace(reduce_scatter(size, hosts) * 2, bytes=sent)


def reduce_scatter(size: float, hosts: Hosts) -> Traffic:
    """The sum of ``size`` bytes, of which each worker gets one part."""
    return _ring(size / len(hosts), hosts)


def all_gather(size: float, hosts: Hosts) -> Traffic:
    """Every worker gets the ``size`` bytes of each other one: at once, or by a ring if several hosts have several."""
    others, different = (len(hosts) - 1) * size, len({*hosts})
    if 1 < len(hosts) == different:
        return Traffic(others, 1, others)
    if different == 1:
        return Traffic(others, local_messages=min(1, len(hosts) - 1), local_bytes=len(hosts) * others)
    return _ring(size, hosts)


def all_to_all(size: float, hosts: Hosts) -> Traffic:
    """Every worker sends an equal part of ``size`` bytes to each worker at once, its own included."""
    workers, part = len(hosts), size / len(hosts)
    sent, most = (workers - 1) * part, max(Counter(hosts).values())
    if most == workers:
        return Traffic(sent, local_messages=min(1, workers - 1), local_bytes=workers * sent)
    busiest = max(count * (workers - count) for count in Counter(hosts).values())
    return Traffic(sent, 1, busiest * part)


def reduce(size: float, hosts: Hosts) -> Traffic:
    """Rank 0 gets the sum of ``size`` bytes: a reduce-scatter by a ring, and its parts, as gloo does it."""
    workers = len(hosts)
    parts = _round(size / workers, hosts, [(rank, 0) for rank in range(1, workers)])
    return reduce_scatter(size, hosts) + parts


def broadcast(size: float, hosts: Hosts) -> Traffic:
    """Rank 0 sends ``size`` bytes to all others, by a binomial tree."""
    workers = len(hosts)
    distances = [1 << power for power in range(ceil(log2(workers)))]
    return total(
        _round(size, hosts, [(rank, rank + far) for rank in range(min(far, workers - far))]) for far in distances
    )


def neighbours(size: float, hosts: Hosts, hops: Sequence[int]) -> Traffic:
    """Every worker sends ``size`` bytes to the other ranks that are ``hops`` away, at the same time."""
    workers = len(hosts)
    distances = {hop % workers for hop in hops} - {0}
    return _round(size, hosts, [(rank, (rank + far) % workers) for far in distances for rank in range(workers)])


def parameter_server(size: float, hosts: Hosts, servers: int | None = 1) -> Traffic:
    """Every worker sends ``size`` bytes to servers, each with a share of the bytes, and gets as many.

    Servers have hosts of their own; with None, each worker hosts a server instead.
    """
    if servers is None:
        return all_to_all(size, hosts) * 2
    busiest = max(len(hosts) / servers, *Counter(hosts).values())
    return Traffic(size, 2, 2 * busiest * size)


def layered(size: float, groups: Sequence[Hosts]) -> Traffic:
    """The sum of ``size`` bytes inside groups, then among their first workers by a ring; they send it to their groups.

    Args:
        size: bytes that a worker sends to the first worker of its group.
        groups: the hosts of each group's workers.
    """
    workers = sum(map(len, groups))
    between = all_reduce(size, [group[0] for group in groups])
    inside = [reduce(size, group) + broadcast(size, group) for group in groups]
    longest = max(inside, key=lambda one: (one.link_bytes, one.local_bytes))
    sent = between.bytes * len(groups) + sum(one.bytes * len(group) for one, group in zip(inside, groups, strict=True))
    return replace(longest + between, bytes=sent / workers)


def _ring(size: float, hosts: Hosts) -> Traffic:
    return neighbours(size, hosts, (1,)) * (len(hosts) - 1)


def _round(size: float, hosts: Hosts, pairs: Sequence[tuple[int, int]]) -> Traffic:
    # If one message crosses hosts, the round takes as long as the messages that cross.
    if not pairs:
        return Traffic()
    sent = size * len(pairs) / len(hosts)
    named = [(hosts[source], hosts[target]) for source, target in pairs]
    crossing = [pair for pair in named if pair[0] != pair[1]]
    if not crossing:
        return Traffic(sent, local_messages=1, local_bytes=size * max(Counter(named).values()))
    busiest = max(most for ends in zip(*crossing, strict=True) for most in Counter(ends).values())
    return Traffic(sent, 1, size * busiest)
