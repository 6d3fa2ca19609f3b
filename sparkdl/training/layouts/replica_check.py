"""Checks that the replicas of a gang are equal, and that no rank changes its own alone.

A tensor's 64-bit words are summed over rows and over columns of 32 767 words. Of both sums s, the hash is

    h = sum_i m_i (s_i + floor(s_i / 2^32))  mod 2^64,   m_i odd.

Any flipped bit changes h, since an odd factor has an inverse. The bits count: -0.0 is not 0.0.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparkdl.cluster.group.world import World
from sparkdl.data.columns import listed
from sparkdl.errors import InvalidInput, PeerLost
from sparkdl.telemetry.emit import notify
from sparkdl.training.layouts import Replica

TOLERANCE = 1e-4  # of a tensor's norm: the largest difference of replicas on processors of several kinds
_COLUMNS = 32767  # odd, so that the signs of all words of a row do not cancel
_FACTOR = -7046029254386353131  # odd: 2^64 divided by the golden ratio


def hash_of(tensor: Tensor) -> Tensor:
    """Hash the bits of a tensor of any dtype to two int64 on its device."""
    dense = tensor.detach().contiguous()
    data = (torch.view_as_real(dense) if dense.is_complex() else dense).reshape(-1).view(torch.uint8)
    if len(data) % 8 or data.storage_offset() % 8:
        data = F.pad(data, (0, -len(data) % 8))
    words = data.view(torch.int64)
    if len(words) < _COLUMNS:
        return torch.stack([_weighted(words), words.new_zeros(())])
    rows = words[: len(words) // _COLUMNS * _COLUMNS].view(-1, _COLUMNS)
    return torch.stack([_weighted(torch.cat([rows.sum(1), words[rows.numel() :]])), _weighted(rows.sum(0))])


def _weighted(words: Tensor) -> Tensor:
    odd = torch.arange(1, len(words) + 1, device=words.device).mul_(_FACTOR).bitwise_or_(1)
    return (words >> 32).add_(words).mul_(odd).sum()


def describe(
    module: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    *,
    buffers: bool = False,
    without: Collection[str] = (),
) -> dict[str, Any]:
    """Shape, dtype, use and hash of each tensor, the modules' modes, and ``param_groups``, by name."""
    tensors = dict(module.named_parameters()) | (dict(module.named_buffers()) if buffers else {})
    tensors = {name: value for name, value in tensors.items() if name not in without}
    hashes = torch.stack([hash_of(value) for value in tensors.values()]).tolist()
    described: dict[str, Any] = {
        name: (tuple(value.shape), value.dtype, value.requires_grad, hashed)
        for (name, value), hashed in zip(tensors.items(), hashes, strict=True)
    }
    described["train() or eval()"] = json.dumps([part.training for part in module.modules()])
    indices = {id(parameter): index for index, parameter in enumerate(module.parameters())}
    for number, group in enumerate(optimizer.param_groups if optimizer is not None else ()):
        settings = group | {"params": [indices.get(id(parameter)) for parameter in group["params"]]}
        for key, value in settings.items():
            text = json.dumps(value, default=_plain, skipkeys=True)
            described[f"optimizer.param_groups[{number}][{key!r}]"] = text
    return described


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else type(value).__qualname__


def _differing(states: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for state in states for name in state)  # in the same order on all ranks
    return [name for name in names if any(state.get(name) != states[0].get(name) for state in states)]


@dataclass
class ReplicaCheck:
    """Compares workers that hold the same slices; buffers, which each worker's batches change, do not count."""

    replica: Replica
    world: World
    optimizers: bool  # whether ``param_groups`` are equal as well
    warned: bool = field(default=False, init=False)
    reached: set[int] = field(default_factory=set, init=False)  # callbacks that may hold the module or the optimizer

    def __call__(self, moment: str) -> bool:
        """Compare the replicas by one collective of eight bytes; return whether all took the first one's weights.

        If they differ, the lowest rank that does raises InvalidInput, with ``moment``; the other ranks raise PeerLost.
        """
        group = self.replica.workers.replicas
        if group.size == 1:
            return False
        optimizer = self.replica.optimizer if self.optimizers else None
        description = describe(self.replica.module, optimizer, without=self.replica.divided)
        digest = int.from_bytes(hashlib.sha256(repr(description).encode()).digest()[:8], "little", signed=True)
        mine = torch.tensor([digest], device=self.world.device if group.nccl else "cpu")
        digests = mine.new_empty(group.size)
        group.all_gather_into(digests, mine)
        if len({*digests.tolist()}) == 1:
            return False
        kinds, states = zip(*group.gather((_processor(self.world.device), description)), strict=True)
        if len({*kinds}) == 1:
            # Most ranks are right; of two ranks, rank 0.
            right = Counter(map(repr, states)).most_common(1)[0][0]
            expected = next(state for state in states if repr(state) == right)
            differing = [_differing([expected, state]) for state in states]
        else:
            differing = group.gather(self._take(states))
        self._judge(moment, {rank: names for rank, names in zip(group.ranks, differing, strict=True) if names}, kinds)
        return True

    @contextmanager
    def watch(self, callback: Any, moment: str) -> Iterator[Callable[[], None]]:
        """Raise InvalidInput if a callback's method, which rank 0 alone calls in the block, changes the replica.

        Yields a function to call before the callback gets the module or the optimizer; without it nothing is compared.
        """
        before: dict[str, Any] = {}

        def access() -> None:
            self.reached.add(id(callback))
            before.update(before or self._state())

        if id(callback) in self.reached:
            access()
        yield access
        if before and (changed := _differing([before, self._state()])):
            raise InvalidInput(
                f"{type(callback).__name__}.{moment} changed {listed(changed)} on rank 0 alone, since every_rank is "
                "False; expected no change. Leave every_rank out, and upload or print if run.rank == 0."
            )

    def _state(self) -> dict[str, Any]:
        module, optimizer = self.replica.module, self.replica.optimizer
        # Without lockstep, other workers' pushes change rows of tables meanwhile.
        without = () if self.replica.lockstep else self.replica.divided
        state = describe(module, optimizer, buffers=True, without=without)
        state["parameters()"] = [id(parameter) for parameter in module.parameters()]
        state["optimizer.state"] = [
            (id(owner), name, _identity(value) if isinstance(value, Tensor) else repr(value))
            for owner, values in optimizer.state.items()
            for name, value in values.items()
        ]
        return state

    def _judge(self, moment: str, differing: dict[int, list[str]], kinds: Sequence[str]) -> None:
        rank = self.world.rank
        if differing:
            ranks = "; ".join(f"rank {odd} in {listed(names)}" for odd, names in [*differing.items()][:9])
            message = (
                f"{moment}, replicas differ: {ranks}; expected equal ones. If a callback changes weights or optimizer, "
                "let it act alike on every rank. If none does, check the memory of that rank's host, and resume."
            )
            raise InvalidInput(message) if rank == min(differing) else PeerLost(message)
        if self.replica.workers.replicas.rank == 0 and not self.warned:
            notify(
                f"{moment}, the replicas differ in their last bits, since the workers' processors do "
                f"({', '.join(sorted({*kinds}))}). All take the weights of rank {rank}, now and each time later."
            )
        self.warned = True

    @torch.no_grad()
    def _take(self, states: Sequence[Mapping[str, Any]]) -> list[str]:
        parameters, far = dict(self.replica.module.named_parameters()), []
        for name in _differing(states):
            values: list[Any] = [state.get(name) for state in states]
            if all(isinstance(value, tuple) and value[:3] == values[0][:3] for value in values):
                weight, first = parameters[name], parameters[name].clone()
                self.replica.workers.replicas.broadcast_(first)
                wide = torch.complex128 if weight.is_complex() else torch.float64
                distance, norm = (weight.to(wide) - first.to(wide)).norm(), first.to(wide).norm()
                near = bool(distance <= TOLERANCE * norm)  # NaN is far
                weight.copy_(first)
            else:
                near = len({*map(_rounded, values)}) == 1
            far += [] if near else [name]
        return far


def _identity(tensor: Tensor) -> tuple[int, int]:
    return (id(tensor) if tensor.is_sparse else tensor.data_ptr()), tensor._version


def _rounded(setting: Any) -> str:
    if not isinstance(setting, str):
        return repr(setting)
    return repr(json.loads(setting, parse_float=lambda number: f"{float(number):.6g}"))


def _processor(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    # The bits of matrix products, as in PowerSGD, depend on the number of threads too.
    return f"{torch.backends.cpu.get_cpu_capability()} with {torch.get_num_threads()} threads"
