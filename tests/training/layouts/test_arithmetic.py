"""Half precision with a scaled loss, compilation, channels in the last place, and TF32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparkdl.cluster.group.world import World
from sparkdl.data.batch import Batch
from sparkdl.errors import InvalidInput
from sparkdl.training.layouts.arithmetic import LossScaler, exchanges_statistics, sync_batch_norm, tf32
from sparkdl.training.layouts.passes import ModuleReplica
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.objective.objective import Objective
from tests.contracts import work

X = torch.rand(8, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def placed(**options: Any) -> ModuleReplica:
    given = {"model": net, "loss": nn.MSELoss(), "optimizer": sgd} | options
    return Replicated().place(Objective(**given), World(), work.FEED)


def scaled(scale: float = 1024.0, **options: Any) -> ModuleReplica:
    """A replica in fp16 with a scale that its gradients survive; the first one is meant to be too large."""
    replica = placed(precision="fp16", **options)
    state = replica.state_dict()
    state["shared"]["scaler"]["scale"] = scale
    replica.load_state_dict(state)
    return replica


def batch(x: Tensor = X, y: Tensor = Y) -> Batch:
    return Batch((x,), y, None, None, len(x), float(len(x)), 1.0)


def weights(replica: ModuleReplica) -> Tensor:
    return torch.cat([value.detach().reshape(-1) for value in replica.parameters])


def test_a_step_of_its_own_replaces_the_optimizers_and_is_skipped_as_it_is():
    replica, taken = scaled(), []
    replica.gradients(batch())
    replica.apply(lambda: taken.append([parameter.grad.clone() for parameter in replica.parameters]))
    assert len(taken[0]) == len(replica.parameters)
    assert replica.optimizer.state_dict()["state"] == {}
    replica.gradients(batch(y=Y * float("inf")))
    replica.apply(lambda: taken.append([]))
    assert len(taken) == 1
    replica = placed()
    replica.gradients(batch())
    replica.apply(lambda: taken.append([]))
    assert len(taken) == 2
    assert torch.equal(weights(replica), weights(placed()))
    another = replica.open_optimizer([("weight", nn.Parameter(torch.ones(2)))])
    assert isinstance(another, torch.optim.SGD)


# ---- fp16 ------------------------------------------------------------------------------------------------------------


def test_a_scaled_loss_gives_unscaled_losses_gradients_and_norms():
    half, full = scaled(max_grad_norm=0.5), placed(max_grad_norm=0.5)
    for _ in range(5):
        losses = [replica.gradients(batch()) for replica in (half, full)]
        torch.testing.assert_close(*losses, rtol=1e-2, atol=1e-3, check_dtype=False)
        for replica in (half, full):
            replica.apply()
    torch.testing.assert_close(weights(half), weights(full), rtol=1e-2, atol=2e-3)
    assert not torch.equal(weights(half), weights(full))


def test_small_gradients_survive():
    tiny = 1e-7  # below fp16's smallest number, 6e-8, in a backward pass of half precision
    half = scaled(2.0**16, loss=lambda output, target: tiny * (output - target).square().mean())
    half.gradients(batch())
    assert all(value.grad.abs().max() > 0 for value in half.parameters)


def test_infinite_gradients_skip_the_step_and_halve_the_scale():
    half = scaled()
    before, scale = weights(half).clone(), half.state_dict()["shared"]["scaler"]["scale"]
    half.gradients(batch())
    half.parameters[0].grad[0, 0] = torch.inf
    half.apply()
    assert torch.equal(weights(half), before)
    assert half.state_dict()["shared"]["scaler"]["scale"] == scale / 2
    half.gradients(batch())
    half.apply()
    assert not torch.equal(weights(half), before)


def test_the_scale_is_in_the_state():
    one, other = placed(precision="fp16"), placed(precision="fp16")
    one.gradients(batch())
    one.parameters[0].grad[0, 0] = torch.nan
    one.apply()
    other.load_state_dict(one.state_dict())
    assert other.state_dict()["shared"]["scaler"] == one.state_dict()["shared"]["scaler"]
    for replica in (one, other):
        replica.gradients(batch())
        replica.apply()
    assert torch.equal(weights(one), weights(other))


def test_parameters_outside_the_optimizer_count_unscaled_in_the_norm():
    def of_the_last(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters[-2:], lr=0.1)

    options: dict[str, Any] = {"max_grad_norm": 0.01, "optimizer": of_the_last}
    half, full = scaled(**options), placed(**options)
    for replica in (half, full):
        replica.gradients(batch())
        replica.apply()
    torch.testing.assert_close(weights(half), weights(full), rtol=1e-3, atol=1e-5)


def test_gradients_outside_the_optimizer_alone_do_not_stop_the_next_step():
    module, outside = net(), nn.Parameter(torch.ones(1))
    optimizer, scaler = sgd(module.parameters()), LossScaler(torch.device("cpu"))
    gradients = []
    for graded in (outside, module[0].weight):
        scaler.scale(graded.sum()).backward()
        scaler.unscale(optimizer, [*module.parameters(), outside])
        scaler.step_and_update(optimizer)
        gradients.append(graded.grad)
        graded.grad = None
    assert [bool((gradient == 1).all()) for gradient in gradients] == [True, True]


def test_a_step_without_gradients_steps_the_optimizer():
    module = net()
    optimizer = sgd(module.parameters())
    scaler = LossScaler(torch.device("cpu"))
    for graded in (False, True, False, True):
        if graded:
            scaler.scale(module(X).sum()).backward()
        scaler.unscale(optimizer, list(module.parameters()))
        scaler.step_and_update(optimizer)
        optimizer.zero_grad()


# ---- compilation -----------------------------------------------------------------------------------------------------


def test_a_compiled_model_computes_the_same():
    compiled, plain = placed(compile="eager"), placed()
    for replica in (compiled, plain):
        for _ in range(2):
            replica.gradients(batch())
            replica.apply()
    assert torch.equal(weights(compiled), weights(plain))
    names = [list(replica.module.state_dict()) for replica in (compiled, plain)]
    assert names[0] == names[1]
    assert compiled.module._compiled_call_impl is not None


def test_if_the_compiler_fails_the_model_runs_uncompiled_with_a_warning():
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no C++ compiler")

    torch._dynamo.register_backend(broken, name="broken")
    compiled, plain = placed(compile="broken"), placed()
    with pytest.warns(UserWarning, match=r"compile is ignored: BackendCompilerFailed: .*no C\+\+ compiler"):
        compiled.gradients(batch())
    assert compiled.module._compiled_call_impl is None
    plain.gradients(batch())
    for one, other in zip(compiled.parameters, plain.parameters, strict=True):
        assert torch.equal(one.grad, other.grad)


# ---- memory format and TF32 ------------------------------------------------------------------------------------------


class Seen(nn.Conv2d):
    """Records the memory format of its inputs."""

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x.is_contiguous(memory_format=torch.channels_last)
        return super().forward(x).mean((2, 3))[:, :1]


def test_channels_are_last_in_weights_and_inputs():
    replica = placed(model=lambda: Seen(3, 4, 3), channels_last=True)
    replica.gradients(batch(torch.rand(8, 3, 6, 6)))
    assert replica.module.seen
    assert replica.module.weight.is_contiguous(memory_format=torch.channels_last)


def test_tf32_holds_within_the_block_on_gpus_only():
    matmul: Any = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    with tf32(enabled=True, device=torch.device("cuda")):
        assert matmul.fp32_precision == "tf32"
    assert matmul.fp32_precision == before
    ignored = pytest.warns(UserWarning, match="tf32=True is ignored: only GPUs")
    with ignored, tf32(enabled=True, device=torch.device("cpu")):
        assert matmul.fp32_precision == before


# ---- SyncBatchNorm ---------------------------------------------------------------------------------------------------


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def test_sync_batch_norm_needs_gpus_and_several_workers():
    with pytest.warns(UserWarning, match="syncBatchNorm=True is ignored: torch's SyncBatchNorm needs GPUs"):
        module = sync_batch_norm(normalised(), World(size=2))
    assert not exchanges_statistics(module, World(size=2))
    gpu = torch.device("cuda", 0)
    for size, model, expected in ((1, normalised, False), (2, normalised, True), (2, net, False)):
        world = World(size=size, device=gpu)
        assert exchanges_statistics(sync_batch_norm(model(), world), world) is expected


def test_sync_batch_norm_needs_rows_of_each_worker_in_each_step():
    """The others would wait for its statistics."""
    replica = placed()
    empty = Batch((X[:0],), Y[:0], None, None, 0, 0.0, 0.0)
    assert replica.gradients(empty).item() == 0.0
    replica.needs_rows = True
    with pytest.raises(InvalidInput, match=r"no row of positive weight in a step.*SyncBatchNorm.*dropLast=True"):
        replica.gradients(empty)
