"""Groups of workers along axes: which ranks form which group, and their process groups.

A grid of ``n_1 x ... x n_k`` workers numbers them row by row, so neighbours on the last axis have consecutive ranks:

    rank = (...((i_1 n_2 + i_2) n_3 + i_3)...) n_k + i_k,        the group along axis ``a`` varies only ``i_a``.

The usual axes are ``replica``, ``shard``, ``stage`` and ``tensor``, in this order: the most frequent collectives then
stay within a host.

``open_axes`` and ``split`` are collectives: all workers of the gang call them at the same place with equal arguments,
since ``dist.new_group`` demands it. A layout calls ``open_axes`` in ``place``, a strategy or reducer ``split`` when it
attaches. Afterwards ``World.group(axis)`` connects nothing, so it cannot hang. The end of the gang destroys all groups.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from sparkdl.cluster.group.peers import reaching_peers
from sparkdl.cluster.group.world import DATA, Axis, Group, World
from sparkdl.errors import InvalidInput

Groups = list[tuple[int, ...]]
"""Disjoint groups of positions, each in ascending order."""

Rule = Callable[[Sequence[str]], Groups]
"""Divides workers into groups of positions, given the host of each; a position in no group is alone."""


# ---- which ranks form which group ------------------------------------------------------------------------------------


def grid(sizes: Mapping[str, int], workers: int) -> dict[str, Groups]:
    """The groups along each axis of a grid.

    Args:
        sizes: axis -> workers along it, from the slowest axis to the fastest.
        workers: workers of the gang.

    Raises:
        InvalidInput: a size is below 1, or the sizes do not multiply to ``workers``.
    """
    shape = tuple(sizes.values())
    if any(size < 1 for size in shape) or math.prod(shape) != workers:
        raise InvalidInput(
            f"the axes {dict(sizes)} have {math.prod(shape)} workers, and the gang has {workers}. Set sizes of at "
            "least 1 that multiply to numWorkers."
        )
    ranks = torch.arange(workers).view(shape)
    return {
        axis: sorted(map(tuple, ranks.movedim(at, -1).reshape(-1, size).tolist()))
        for at, (axis, size) in enumerate(sizes.items())
    }


def by_host(hosts: Sequence[str]) -> Groups:
    """The workers of each host."""
    groups: dict[str, list[int]] = {}
    for position, host in enumerate(hosts):
        groups.setdefault(host, []).append(position)
    return [*map(tuple, groups.values())]


def consecutive(hosts: Sequence[str], size: int) -> Groups:
    """Groups of ``size`` consecutive workers on any hosts; the last group has the remainder."""
    positions = range(len(hosts))
    return [tuple(positions[start : start + size]) for start in range(0, len(hosts), size)]


def leaders(groups: Groups) -> Groups:
    """One group: the first worker of each group."""
    return [tuple(sorted(group[0] for group in groups))]


def divide(axis: Axis, rule: Rule) -> Axis:
    """The axis whose groups divide each group of ``axis`` by the rule."""
    groups = [
        tuple(group[position] for position in part)
        for group in axis.groups
        for part in rule([axis.hosts[rank] for rank in group])
    ]
    return replace(axis, groups=tuple(groups))


# ---- their process groups --------------------------------------------------------------------------------------------


def open_axes(world: World, axes: Mapping[str, Groups]) -> None:
    """Open axes, for ``world.group(axis)``; a collective of the gang.

    Args:
        world: this worker's world.
        axes: axis -> groups of ranks, as of ``grid`` or ``by_host(world.group().hosts)``.

    Raises:
        ValueError: the world has an axis of this name with other groups.
        PeerLost: another worker did not call it within the gang's timeout.
    """
    everyone = world.group(DATA)
    for name, groups in axes.items():
        axis = Axis(tuple(map(tuple, groups)), everyone.hosts, world.timeout, world)
        if name == DATA or (name in world.groups and world.groups[name].axis != axis):
            raise ValueError(f"the axis {name!r} is open with other groups.")
        if name not in world.groups:
            world.groups[name] = _connect(axis, world.rank)
            world.axes = {**(world.axes or {DATA: world.size}), name: world.groups[name].size}


def split(group: Group, rule: Rule) -> Group:
    """This worker's group after each group of the axis is divided by a rule; a collective of the gang.

    Raises:
        ValueError: the group is not of a world.
        PeerLost: another worker did not call it within the gang's timeout.
    """
    if group.axis is None:
        raise ValueError("only a group of World.group() or split() can be divided.")
    return _connect(divide(group.axis, rule), group.ranks[group.rank])


def _connect(axis: Axis, rank: int) -> Group:
    members: tuple[int, ...] = (rank,)
    handle, timeout = None, datetime.timedelta(seconds=axis.timeout)
    for ranks in axis.groups:
        if len(ranks) > 1:  # every worker takes part for every group, in the same order
            with reaching_peers():
                process_group: Any = dist.new_group(list(ranks), timeout=timeout)
            handle = process_group if rank in ranks else handle
        members = ranks if rank in ranks else members
    return Group(members.index(rank), len(members), handle, members, axis)
