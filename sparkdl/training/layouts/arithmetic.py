"""Arithmetic of a replica's step: autocast, loss scaling, clipping, compilation, memory format and TF32."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.cluster.group.world import Group, World
from sparkdl.data.batch import Input

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Autocast to half precision; nothing for full precision."""
    return torch.autocast(device.type, _HALF[precision]) if precision in _HALF else nullcontext()


class LossScaler(torch.amp.GradScaler):
    """Scales the loss of fp16, whose small gradients would become 0.

    If a gradient is infinite or NaN, the step is skipped and the scale halved: P. Micikevicius et al., Mixed precision
    training, 2018. With ``AllReduce`` the scale is the same on all workers, since it follows from summed gradients.
    With strategies of local steps, it is each worker's own.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device.type)
        self.scale(torch.zeros((), device=device))  # makes the scale, also on a worker without rows

    def unscale(self, optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> None:
        """Divide all gradients by the scale, also the gradients of parameters that the optimizer does not have."""
        owned = _graded(optimizer)
        if owned:  # without gradients torch's scaler raises, here or in the next step
            self.unscale_(optimizer)
        for parameter in parameters:
            if id(parameter) not in owned and parameter.grad is not None:
                parameter.grad /= self.get_scale()

    def step_and_update(self, optimizer: torch.optim.Optimizer, step: Callable[[], None] | None = None) -> None:
        """Call ``step``, by default the optimizer's, unless a gradient is infinite or NaN, and adapt the scale."""
        infinite = self._found_inf_per_device(optimizer)  # empty without gradients
        if step is None and _graded(optimizer):
            self.step(optimizer)
        elif not any(map(bool, infinite.values())):
            (step or optimizer.step)()
        if infinite:
            self.update()


def _graded(optimizer: torch.optim.Optimizer) -> set[int]:
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return {id(parameter) for parameter in parameters if parameter.grad is not None}


@torch.no_grad()
def clip(gradients: Sequence[Tensor], max_norm: float, group: Group, copies: Sequence[int] = ()) -> None:
    """Scale gradients so that the L2 norm of the whole gradient is at most ``max_norm``.

    As ``torch.nn.utils.clip_grad_norm_``, which takes neither sparse gradients nor slices of several workers.

    Args:
        gradients: this worker's gradients or slices of them, dense or sparse.
        max_norm: the largest norm.
        group: the workers whose slices together make up the whole gradient.
        copies: for each of the gradients, how many workers of the group hold it; default: one.
    """
    values = [one.coalesce().values() if one.is_sparse else one for one in gradients]
    if group.size == 1:
        norm = nn.utils.get_total_norm(values)
    else:
        device = torch.device("cuda") if group.nccl else gradients[0].device if gradients else torch.device("cpu")
        square = torch.zeros((), dtype=torch.float64, device=device)
        for value, number in zip(values, copies or [1] * len(values), strict=True):
            square += value.double().square().sum().to(device) / number
        group.sum_(square)
        norm = square.sqrt_() if not gradients else square.sqrt_().to(gradients[0].device)
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    if dense := [one for one in gradients if not one.is_sparse]:  # torch refuses an empty list
        torch._foreach_mul_(dense, factor)
    for one in gradients:
        if one.is_sparse:
            one.mul_(factor)


def compile_module(module: nn.Module, backend: str) -> None:
    """Compile the calls of a module in place; ``loss.forward`` handles the compiler's failures."""

    # module.compile() would leave a module of torch's own class, such as nn.Sequential, uncompiled, without a word.
    def call(*inputs: Any) -> Any:
        return module._call_impl(*inputs)  # type: ignore[no-untyped-call]

    module._compiled_call_impl = torch.compile(call, backend=backend)


def sync_batch_norm(module: nn.Module, world: World) -> nn.Module:
    """The module with torch's ``SyncBatchNorm`` in place of batch normalisation; a warning and no change on CPUs."""
    if world.device.type != "cuda":
        warnings.warn("syncBatchNorm=True is ignored: torch's SyncBatchNorm needs GPUs.", stacklevel=2)
        return module
    synchronised: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    return synchronised


def exchanges_statistics(module: nn.Module, world: World) -> bool:
    """Whether workers exchange statistics in each pass of the module, by ``SyncBatchNorm``."""
    return world.size > 1 and any(isinstance(part, nn.SyncBatchNorm) for part in module.modules())


def in_channels_last(inputs: tuple[Input, ...]) -> tuple[Input, ...]:
    """Inputs ``[B, C, H, W]`` with the channels last in memory; others unchanged."""
    return tuple(
        value.contiguous(memory_format=torch.channels_last) if isinstance(value, Tensor) and value.dim() == 4 else value
        for value in inputs
    )


@contextmanager
def slow_attention() -> Iterator[None]:
    """In the block, torch's attention calls its layers in evaluation; its fast path would only read their weights."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def tf32(*, enabled: bool, device: torch.device) -> Iterator[None]:
    """Let GPUs multiply float32 matrices in TF32 in the block, if it is ``enabled``; convolutions do by default."""
    if enabled and device.type != "cuda":
        warnings.warn("tf32=True is ignored: only GPUs have TF32.", stacklevel=2)
    if not enabled or device.type != "cuda":
        yield
        return
    matmul: Any = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    try:
        yield
    finally:
        matmul.fp32_precision = before
