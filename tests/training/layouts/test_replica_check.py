"""Replicas that should be equal are compared by the hashes of their weights and by their optimizers' settings."""

from dataclasses import dataclass, replace

import pytest
import torch

from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.local import LocalCluster
from sparkdl.errors import InvalidInput
from sparkdl.training.layouts import replica_check
from sparkdl.training.layouts.replica_check import hash_of
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.elastic_averaging import ElasticAveraging
from sparkdl.training.strategies.gossip import Gossip
from sparkdl.training.strategies.local_sgd import LocalSGD, LocalSGDSync
from tests.contracts.strategy_contract import Case, numbers
from tests.results import merged
from tests.training.callbacks.test_callbacks import fit, training

DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "complex64", "int64", "int8", "bool")


def hashed(tensor):
    return tuple(hash_of(tensor).tolist())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7), (90, 999)])
def test_hash_finds_each_flipped_bit(dtype, shape):
    tensor = torch.randn(shape).mul(3).to(getattr(torch, dtype))
    data = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1).view(torch.uint8)
    expected = hashed(tensor.clone())
    for byte in {0, len(data) // 2, len(data) - 1}:
        for bit in range(8):
            data[byte] ^= 1 << bit
            assert hashed(tensor) != expected
            data[byte] ^= 1 << bit
    assert hashed(tensor) == expected


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("shape", [(2, 3), (512, 512)])
def test_hash_depends_on_signs_and_positions_but_not_on_strides(dtype, shape):
    tensor = torch.randn(shape, dtype=getattr(torch, dtype))
    tensor[0, 0] = -1  # 0 * tensor has a negative zero
    signs = torch.ones(shape, dtype=tensor.dtype)
    signs[:1] = -1
    others = [-tensor, tensor * signs, tensor.flip(0), tensor.roll(1, 1), torch.full(shape, torch.nan), 0 * tensor]
    assert len({*map(hashed, (tensor, *others, torch.zeros(shape).to(tensor)))}) == 8
    assert hashed(tensor.t().contiguous().t()) == hashed(tensor)
    assert hashed(others[4]) == hashed(others[4].clone())


class Acts:
    """Calls a function of ``run`` in a method, on a rank or all, at a step or all."""

    def __init__(self, moment, act, rank=None, step=None):
        def method(run):
            if rank in (None, run.rank) and step in (None, run.clock.step):
                act(run)

        setattr(self, moment, method)


class Alone(Acts):
    every_rank = False


def weight(run):
    return run.module.head.weight


@torch.no_grad()
def add(run):
    weight(run).add_(1)


def halve(run):
    for group in run.optimizer.param_groups:
        group["lr"] *= 0.5


def noisy(size):
    return lambda run: weight(run).data.mul_(1 + size)


def flip(run):
    weight(run).data.view(torch.uint8).view(-1)[3] ^= 1


def swap(run):
    weight(run).data = weight(run).detach() * 2


CHANGES = {
    "in place": (add, "head.weight"),
    "through data": (noisy(0.1), "head.weight"),
    "one bit": (flip, "head.weight"),
    "through numpy": (lambda run: weight(run).detach().numpy().fill(0), "head.weight"),
    "other storage": (swap, "head.weight"),
    "load_state_dict": (lambda run: run.module.load_state_dict(type(run.module)().state_dict()), "head.weight"),
    "frozen": (lambda run: run.module.hidden.requires_grad_(False), "hidden.weight"),
    "mode": (lambda run: run.module.eval(), r"train\(\) or eval\(\)"),
    "learning rate": (halve, r"optimizer.param_groups\[0\]\['lr'\]"),
    "group": (lambda run: run.optimizer.add_param_group({"params": [torch.zeros(1)]}), r"param_groups\[1\]"),
}
OWN_STATE = {
    "momentum": (lambda run: [state["momentum_buffer"].zero_() for state in run.optimizer.state.values()], "state"),
    "state": (lambda run: run.optimizer.state.clear(), "optimizer.state"),
    "buffer": (lambda run: run.module.register_buffer("seen", torch.ones(1)), "seen"),
}


@pytest.mark.parametrize(("act", "named"), (CHANGES | OWN_STATE).values(), ids=CHANGES | OWN_STATE)
@pytest.mark.parametrize("moment", ["on_step", "on_epoch"])
def test_change_on_rank_0_alone_raises_at_that_call(act, named, moment):
    momentum = replace(training().objective, optimizer=lambda parameters: torch.optim.SGD(parameters, 0.1, 0.9))
    held = []  # a callback may keep the run, and need not ask it again
    early = Alone("on_start", lambda run: held.append(run.module and run))
    early.__dict__[moment] = lambda run: act(held[0])
    for callback in (Alone(moment, act), early):
        with pytest.raises(InvalidInput, match=f"A[a-z]+.{moment} changed .*{named}.* on rank 0 alone") as caught:
            fit(InlineCluster(), training(callback, objective=momentum))
        assert caught.value.step == (1 if moment == "on_step" else 3)


def test_callback_on_rank_0_alone_may_read(pair):
    def read(run):
        run.module.eval()
        norms = [value.data.norm() for value in run.module.parameters()]
        run.log(norm=sum(norms), rate=run.optimizer.param_groups[0]["lr"])
        run.module.train()

    saves = Alone("on_end", lambda run: torch.save(run.module, "/dev/null"))
    workers = fit(pair, training(Alone("on_step", read), saves))
    assert [row["rate"] for row in workers[1].history] == [0.05] * 3


@pytest.mark.parametrize("change", ["one bit", "frozen", "mode", "learning rate"])
def test_replicas_that_differ_raise_by_rank_and_parameter(pair, change):
    """Also if a callback runs on all ranks and changes one."""
    act, named = CHANGES[change]
    with pytest.raises(InvalidInput, match=f"after epoch 1, replicas differ: rank 1 in .*{named}") as caught:
        fit(pair, training(Acts("on_step", act, rank=1)))
    assert (caught.value.rank, caught.value.step) == (1, 3)


MOMENTS = {"on_start": LocalSGD(2), "on_validation_start": ElasticAveraging(2), "on_epoch": Gossip()}


@pytest.mark.parametrize(("moment", "strategy"), [*MOMENTS.items(), ("on_end", LocalSGD(2))])
def test_replicas_are_compared_after_callbacks_with_every_strategy(pair, strategy, moment):
    with pytest.raises(InvalidInput, match=f"after {moment}, replicas differ: rank 1 in 'head.weight';"):
        fit(pair, training(Acts(moment, add, rank=0), strategy=strategy))
    fit(pair, training(Acts(moment, add), Acts("on_step", halve, rank=0), strategy=strategy))  # each worker's own rate


def test_interval_finds_a_flipped_bit(pair):
    for interval, found in ((1, 2), (3, 3), (4, 4), (None, 3)):
        with pytest.raises(InvalidInput, match=r"differ: rank 1 in 'head\.weight';") as caught:
            fit(pair, training(Acts("on_step", flip, rank=1, step=2), batch_size=9, replica_check_interval=interval))
        assert caught.value.step == (found if interval else 6)
    with pytest.warns(UserWarning, match=r"replicaCheckInterval=3 is ignored: the workers of LocalSGD"):
        training(strategy=LocalSGD(2), replica_check_interval=3)
    with pytest.raises(InvalidInput, match="replica_check_interval is 0; expected a whole number of at least 1"):
        training(replica_check_interval=0)


def mixed(run):
    replica_check._processor = lambda device: f"processor {run.rank}"


class FromWeights(LocalSGDSync):
    def start_epoch(self):
        assert all(map(torch.equal, self._start, self.replica.parameters))


@dataclass(frozen=True)
class BlocksFromWeights(LocalSGD):
    def attach(self, replica, group):
        return FromWeights(self, replica, group)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [AllReduce(), BlocksFromWeights(2), ElasticAveraging(2)])
def test_replicas_on_mixed_processors_take_the_weights_of_rank_0(pair, strategy):
    expected, events = merged(fit(pair, training(strategy=strategy))), []
    with LocalCluster(2) as cluster:
        for size in (1e-9, 1e-3):
            noise = Acts("on_epoch" if strategy != AllReduce() else "on_step", noisy(size), rank=1)
            callbacks = [Acts("on_start", mixed), Acts("on_start", noisy(size), rank=1), noise]
            run = training(*callbacks, strategy=strategy), numbers(), Case().columns()
            if size > replica_check.TOLERANCE:
                with pytest.raises(InvalidInput, match=r"rank 1 in 'head\.weight';"):
                    cluster.gang(*run)
                continue
            found = merged(cluster.gang(*run, listener=events.append))
            for name, value in expected.items():
                torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-7)
    [warned] = [event.payload["message"] for event in events if event.kind == "warning"]
    assert "(processor 0, processor 1). All take the weights of rank 0" in warned
