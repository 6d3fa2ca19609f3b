"""A GPU simulated by the CPU: its tensors have values, and an operation on tensors of two devices raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sparkdl.cluster import local_tasks, tasks
from sparkdl.data import batching
from sparkdl.rounds import local_solvers

GPU, CPU = torch.device("cuda", 1), torch.device("cpu")
_ACROSS = (torch.ops.aten.copy_.default, torch.ops.aten.index.Tensor)  # a GPU's tensor takes them from the CPU


class SimulatedGpu:
    """The devices of tensors, by their storages; these live as long as this, so that their addresses stay unique."""

    def __init__(self) -> None:
        self.operations = 0
        self._storages: dict[int, tuple[Any, torch.device]] = {}

    def device_of(self, tensor: Tensor) -> torch.device:
        return self._storages.get(tensor.untyped_storage()._cdata, (None, CPU))[1]

    def place(self, value: Any, device: torch.device, *, new: bool) -> None:
        for tensor in _tensors(value):
            storage = tensor.untyped_storage()
            if new or storage._cdata not in self._storages:
                self._storages[storage._cdata] = storage, device

    @contextmanager
    def computing_on(self, device: torch.device) -> Iterator[None]:
        with _Devices(self), _Moves(self):
            yield


class _Moves(TorchFunctionMode):
    """Moves tensors between the devices by copies, and reports a tensor's device."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)  # which needs CUDA
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            return self.gpu.device_of(args[0])
        if func is Tensor.cpu:
            return self._moved(args[0], CPU)
        if func is Tensor.to:
            return self._converted(*args, **kwargs)
        device = None if func == torch._C._nn._parse_to else kwargs.pop("device", None)  # of nn.Module.to
        result = func(*args, **kwargs)
        if func is Tensor.__deepcopy__:  # copies the storage itself
            self.gpu.place(result, self.gpu.device_of(args[0]), new=True)
        if device is None:
            return result
        if _tensors(args):  # such as torch.as_tensor or torch.empty_like
            return self._moved(result, torch.device(device))
        self.gpu.place(result, torch.device(device), new=True)
        return result

    def _converted(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        given = [*args, *kwargs.values()]
        device = next((torch.device(value) for value in given if isinstance(value, torch.device | str)), None)
        dtype = next((value for value in given if isinstance(value, torch.dtype)), tensor.dtype)
        result = tensor.to(dtype, copy=kwargs.get("copy", False))
        return result if device is None else self._moved(result, device)

    def _moved(self, tensor: Tensor, device: torch.device) -> Tensor:
        if self.gpu.device_of(tensor) == device:
            return tensor
        copied = tensor.clone()
        self.gpu.place(copied, device, new=True)
        return copied


class _Devices(TorchDispatchMode):
    """Computes where the operands are; raises if they are on two devices."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = _tensors((args, kwargs))
        # As in torch, a scalar on the CPU may meet any tensor.
        devices = {self.gpu.device_of(tensor) for tensor in given if tensor.dim()} | {
            GPU for tensor in given if self.gpu.device_of(tensor) == GPU
        }
        if len(devices) > 1 and func not in _ACROSS:
            raise AssertionError(f"{func} has tensors on {' and '.join(sorted(map(str, devices)))}")
        device = self.gpu.device_of(given[0]) if func in _ACROSS else next(iter(devices), CPU)
        result = func(*args, **(kwargs or {}))
        self.gpu.place(result, device, new=False)
        self.gpu.operations += device == GPU
        return result


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


@contextmanager
def simulated_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedGpu]:
    """Let the tasks of inline clusters compute on a simulated GPU."""
    gpu = SimulatedGpu()
    with monkeypatch.context() as patched:
        patched.setattr(local_tasks, "mapped", partial(tasks.mapped, choose_device=lambda: GPU))
        patched.setattr(tasks, "computing_on", gpu.computing_on)
        # Modes are of a thread, and the real GPU's memory and generators are missing.
        patched.setattr(batching, "prefetch_to", lambda device, items, tensors_of: iter(items))
        patched.setattr(Tensor, "pin_memory", lambda tensor: tensor)
        for module in (batching, local_solvers):
            patched.setattr(module, "fits", lambda size, device, mode: device.type == "cuda")
        patched.setattr(torch.cuda, "default_generators", {GPU.index: torch.Generator()})
        patched.setattr(torch.random, "fork_rng", lambda devices: nullcontext())
        yield gpu
