"""A module whose parameters lie in slices over workers, by torch's ``fully_shard``.

torch registers its slices as DTensors. Optimizers refuse lists of DTensors and plain tensors, and each call on DTensors
costs 50 to 100 microseconds. So the module has DTensors only while it is ``gathered``, within a pass. Between passes
its parameters are plain tensors of this worker's values, which share the DTensors' memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import _from_local_no_grad
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from sparkdl.cluster.group.world import Group
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import Slice
from sparkdl.training.layouts import SentBytes
from sparkdl.training.layouts.initial_weights import like
from sparkdl.training.layouts.shards.unit_exchanges import UnitGather, UnitMemory, UnitReduceScatter


def shard_of(shape: Sequence[int], rank: int, size: int) -> Slice:
    """The consecutive rows of a tensor that rank ``rank`` of ``size`` workers holds; the last workers have fewer."""
    rows = -(-shape[0] // size)
    first, last = min(rank * rows, shape[0]), min((rank + 1) * rows, shape[0])
    return Slice(tuple(shape), (range(first, last), *map(range, shape[1:])))


class ShardedModule:
    """The units of a module, sharded over the workers of a group.

    Args:
        module: the module, whose parameters have no values.
        units: the units, inner ones first.
        values: this worker's slices of the parameters, by name, as of ``shard_of``.
        group: the workers.
        keep: whether a unit stays gathered from its forward pass to its backward pass.
        device: the device of the passes, if the slices lie on the host; default: the device of the slices.

    Attributes:
        module: the module.
        group: the workers.
        device: the device of the passes.
        sent: bytes that this worker has sent.
        used: names of the parameters that got a gradient in this worker's passes, until ``collect``.
    """

    def __init__(
        self,
        module: nn.Module,
        units: Sequence[Sequence[nn.Module]],
        values: Mapping[str, Tensor],
        group: Group,
        *,
        keep: bool = False,
        device: torch.device | None = None,
    ) -> None:
        self.module, self.group, self.sent = module, group, SentBytes()
        self.used: set[str] = set()
        self._aliases = _aliases(module)
        self._unwatched = {name for name, value in module.named_parameters() if value.requires_grad}
        self._running = False
        self.device = next(iter(values.values())).device if device is None else device
        kind = self.device.type
        policy = OffloadPolicy() if device is None else CPUOffloadPolicy(pin_memory=device.type == "cuda")
        mesh = DeviceMesh.from_group(group.handle, kind)
        originals = dict(module.named_parameters())
        hooks = [(part._load_state_dict_post_hooks, {*part._load_state_dict_post_hooks}) for part in module.modules()]
        for part in (module, *(one for unit in units for one in unit)):
            part.register_forward_hook(_without_views)  # before torch's
        for unit in units:
            fully_shard([*unit], mesh=mesh, reshard_after_forward=not keep, offload_policy=policy)
        fully_shard(module, mesh=mesh, offload_policy=policy)
        self._units = [part for part in module.modules() if isinstance(part, FSDPModule)]
        self._exchange_by(group)
        self._sharded = self._fill(values)
        for registry, before in hooks:  # torch's hooks expect DTensors also between passes
            for key in {*registry} - before:
                del registry[key]
        self._slices = {name: like(_local(value), originals[name]) for name, value in self._sharded.items()}
        for part in module.modules():
            if isinstance(part, nn.RNNBase) and kind == "cuda":  # it would move its weights out of the gathered unit
                part.flatten_parameters = lambda: None  # type: ignore[method-assign]
        self._register(self._slices)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """In the block, the module runs; after the block, its parameters are this worker's slices."""
        for name, value in self._slices.items():
            local: Tensor = _local(self._sharded[name])
            if value.data_ptr() != local.data_ptr():  # set by value.data = ..., not in place
                local.copy_(value.detach())
                value.data = local
            self._sharded[name].requires_grad_(value.requires_grad)
        self._register(self._sharded)
        self._running = True
        yield
        self._running = False
        for unit in self._units:
            unit.reshard()  # torch leaves the root unit gathered after a pass without backward
        self._register(self._slices)

    def collect(self, unused: Collection[str]) -> None:
        """Give the slices the gradients that the passes have summed, except the slices of ``unused``."""
        for name, value in self._sharded.items():
            gradient = value.grad
            if gradient is not None and name not in unused:
                self._slices[name].grad = _local(gradient)
            value.grad = None
        self.used.clear()

    def _exchange_by(self, group: Group) -> None:
        weights, gradients = UnitMemory(), UnitMemory()
        for unit in self._units:
            unit.set_custom_all_gather(UnitGather(group, self.sent, weights))
            unit.set_custom_reduce_scatter(UnitReduceScatter(group, self.sent, gradients))
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)  # gloo refuses what torch calls for fp32 without this
            unit.register_forward_pre_hook(self._watch)  # after torch's, which gathers the unit
            unit.register_forward_pre_hook(self._check_running, prepend=True)
        # Without this, a worker that skips a parameter ends the processes of all.
        self._units[0].set_reduce_scatter_unused_params(True)

    def _check_running(self, unit: nn.Module, _: Any) -> None:
        if not self._running:
            raise InvalidInput(
                f"a callback called {type(unit).__name__.removeprefix('FSDP')}, whose parameters are slices between "
                "two steps; expected that the loop alone runs the model. Log in forward(), or set layout=Replicated()."
            )

    def _watch(self, unit: nn.Module, _: Any) -> None:
        """Add a parameter's name to ``used`` when its gradient is there; torch has just gathered the unit."""
        for name in self._unwatched.copy():
            value = self.module.get_parameter(name)
            if not isinstance(value, DTensor) and value.requires_grad:
                self._unwatched.discard(name)
                value.register_post_accumulate_grad_hook(_mark(self.used, name))  # type: ignore[no-untyped-call]

    def _fill(self, values: Mapping[str, Tensor]) -> dict[str, nn.Parameter]:
        """Give the parameters their values, and return them as DTensors."""
        state: dict[str, nn.Parameter] = {}
        for name, aliases in self._aliases.items():
            empty: Any = self.module.get_parameter(name)
            # Not DTensor.from_local, which would move slices from the host to the GPU.
            value = _from_local_no_grad(values[name], empty._spec)
            state |= dict.fromkeys(aliases, nn.Parameter(value, requires_grad=empty.requires_grad))
        self.module.load_state_dict(state, strict=False, assign=True)
        return {name: self.module.get_parameter(name) for name in self._aliases}

    def _register(self, parameters: Mapping[str, nn.Parameter]) -> None:
        for name, aliases in self._aliases.items():
            for alias in aliases:
                owner, _, key = alias.rpartition(".")
                self.module.get_submodule(owner)._parameters[key] = parameters[name]


def release_meshes() -> None:
    """Release the process groups when a gang ends: torch's caches hold each DTensor's mesh, which holds the group."""
    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]


def _mark(names: set[str], name: str) -> Callable[[Tensor], None]:
    # No method: torch holds hooks outside of Python's garbage collector, and would never free the process group.
    return lambda _: names.add(name)


def _without_views(_: nn.Module, inputs: Any, output: Any) -> Any:
    """Copy outputs that are views: after an operation in place on a view, torch would not gather the unit again."""
    if isinstance(output, Tensor):
        return output.clone() if output._is_view() and output.requires_grad else output
    if type(output) in (tuple, list):
        return type(output)(_without_views(_, inputs, one) for one in output)
    return {key: _without_views(_, inputs, one) for key, one in output.items()} if type(output) is dict else output


def _aliases(module: nn.Module) -> dict[str, list[str]]:
    """All names of each parameter, by its first name."""
    names: dict[int, list[str]] = {}
    for name, value in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(value), []).append(name)
    return {aliases[0]: aliases for aliases in names.values()}


def _local(value: Any) -> Tensor:
    tensor: Tensor = value.detach().to_local()
    return tensor
