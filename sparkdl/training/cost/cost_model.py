"""Seconds of a step, from a model's sizes and the figures of a link.

A step computes for ``c`` seconds and runs exchanges ``k = 1, 2, ...`` one after the other. An exchange takes

    t_k = messages alpha + link_bytes / B  +  the same of the messages inside a host.

The forward pass is a third of ``c``. The share ``r_k`` of the backward pass precedes exchange ``k``; with ``r_k = 1``
nothing overlaps. Exchange ``k`` ends at ``f_k``, and the step takes ``s`` seconds:

    f_k = max(f_(k-1), c/3 + 2 c/3 r_k) + t_k,    s = max(c, f_last) + o.

So ``max(c, sum t_k) <= s - o <= c + sum t_k``. The overhead ``o`` is the encoding, decoding and every other time that
does not depend on the link. ``Cost.overhead_of`` finds it from one measured step; the equations then predict the
seconds on other links. Efficiency is ``c / s``: the speed of N workers per worker, against one worker alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields, Count, NonNegative, Positive, checked, within
from sparkdl.training.cost.traffic import Hosts, Traffic, one_per_host, total
from sparkdl.training.strategies.buckets import Bucket

_FORWARD = 1 / 3  # of a step's computation; the backward pass computes two gradients for each product


@dataclass(frozen=True)
class Link(CheckedFields):
    """The network link of a host.

    Attributes:
        bandwidth: Mbit/s of a connection's data in each direction, as ``sparkdl doctor`` measures it.
        latency: seconds that a small message takes, half of the round trip.
    """

    bandwidth: Positive
    latency: NonNegative

    def seconds(self, messages: float, size: float) -> float:
        """Seconds of messages, one after the other, that carry ``size`` bytes in total."""
        return messages * self.latency + 8 * size / (1e6 * self.bandwidth)


LOOPBACK = Link(bandwidth=10_000, latency=5e-5)
"""Processes of one host that exchange through its memory by gloo."""


@dataclass(frozen=True)
class Exchange(CheckedFields):
    """One exchange of a step.

    Attributes:
        traffic: of one step; of an exchange in every n-th step, an n-th.
        ready: share of the backward pass that precedes it; 1 if it follows the backward pass.
    """

    traffic: Traffic
    ready: Annotated[float, within(0.0, 1.0)] = 1.0


@dataclass(frozen=True)
class Cost:
    """The predicted cost of a step.

    Attributes:
        strategy: its name and hyperparameters.
        workers: their number.
        traffic: sum of the step's exchanges.
        compute: seconds of a step without communication.
        communication: seconds of all exchanges, overlapped or not.
        overhead: seconds that do not depend on the link, such as encoding.
        seconds: seconds of a step.
    """

    strategy: str
    workers: int
    traffic: Traffic
    compute: float
    communication: float
    overhead: float
    seconds: float

    @property
    def bytes(self) -> float:
        """Bytes that a worker sends per step, the mean over workers and steps."""
        return self.traffic.bytes

    @property
    def messages(self) -> float:
        """Messages of a step that wait for each other."""
        return self.traffic.messages + self.traffic.local_messages

    @property
    def efficiency(self) -> float:
        """Speed of a worker relative to a worker that trains alone, from 0 to 1; 0 without ``compute``."""
        return self.compute / self.seconds if self.seconds else 1.0

    def overhead_of(self, measured: float) -> float:
        """The overhead with which the equations predict the ``measured`` seconds of a step, at least 0."""
        return max(0.0, self.overhead + float(checked(measured, NonNegative, "measured")) - self.seconds)

    def __str__(self) -> str:
        rows = {
            "sent": f"{self.bytes / 1e6:.3f} MB by each worker",
            "messages": f"{self.messages:.1f} one after the other",
            "communication": f"{self.communication:.4f} s",
            "computation": f"{self.compute:.4f} s",
            "overhead": f"{self.overhead:.4f} s",
            "step": f"{self.seconds:.4f} s",
            "efficiency": f"{self.efficiency:.0%}" if self.compute else "-",
        }
        table = "\n".join(f"  {name:13}  {value}" for name, value in rows.items())
        return f"{self.strategy}, {self.workers} worker{'s' if self.workers > 1 else ''}\n{table}"


def cost(
    strategy: str,
    exchanges: Sequence[Exchange],
    workers: int,
    link: Link,
    *,
    local: Link = LOOPBACK,
    compute: float = 0.0,
    overhead: float = 0.0,
) -> Cost:
    """The cost of a step; raises InvalidInput if compute or overhead is negative or not finite."""
    for name, value in {"compute": compute, "overhead": overhead}.items():
        checked(value, NonNegative, name)
    end, times = 0.0, [_seconds(exchange.traffic, link, local) for exchange in exchanges]
    for exchange, time in zip(exchanges, times, strict=True):
        end = max(end, compute * (_FORWARD + (1 - _FORWARD) * exchange.ready)) + time
    traffic = total(exchange.traffic for exchange in exchanges)
    return Cost(strategy, workers, traffic, compute, sum(times), overhead, max(compute, end) + overhead)


def _seconds(traffic: Traffic, link: Link, local: Link) -> float:
    between = link.seconds(traffic.messages, traffic.link_bytes)
    return between + local.seconds(traffic.local_messages, traffic.local_bytes)


def during_backward(buckets: Sequence[Bucket], traffic: Iterable[Sequence[Traffic]]) -> list[Exchange]:
    """The exchanges of buckets: the first of each starts in the backward pass, and the others follow it.

    The backward pass computes equally long for each byte.
    """
    size, ready = sum(bucket.buffer.nbytes for bucket in buckets), 0
    during: list[Exchange] = []
    after: list[Exchange] = []
    for bucket, (first, *others) in zip(buckets, traffic, strict=True):
        ready += bucket.buffer.nbytes
        during.append(Exchange(first, ready / size))
        after += map(Exchange, others)
    return during + after


def hosts_of(workers: int | Sequence[Hashable]) -> Hosts:
    """The host of each worker, for a number one for each; raises InvalidInput without workers."""
    if not isinstance(workers, Sequence) or not workers:
        workers = one_per_host(checked(workers, Count, "workers"))
    checked(workers, Sequence, "workers")
    return workers


def shapes_of(model: nn.Module | Callable[[], nn.Module]) -> list[nn.Parameter]:
    """A model's trained parameters on the device ``meta``; raises InvalidInput without any, or if one has no shape."""
    module = model if isinstance(model, nn.Module) else model()
    if not isinstance(module, nn.Module):
        raise InvalidInput(f"the model is of the type {type(module).__name__}; expected an nn.Module or its factory.")
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not trained:
        raise InvalidInput("the model has no trained parameter; expected at least one with requires_grad=True.")
    if any(map(is_lazy, trained)):
        raise InvalidInput("a parameter of the model has no shape yet; run the model on one batch first.")
    return [nn.Parameter(torch.empty_like(parameter, device="meta")) for parameter in trained]


def described(strategy: Any) -> str:
    """A dataclass without the fields that have their defaults, such as ``AllReduce()``."""
    if not is_dataclass(strategy):
        return repr(strategy)
    texts = []
    for one in fields(strategy):
        value = getattr(strategy, one.name)
        default = one.default if one.default_factory is MISSING else one.default_factory()
        if value != default:
            texts.append(f"{one.name}={described(value)}")
    return f"{type(strategy).__name__}({', '.join(texts)})"
