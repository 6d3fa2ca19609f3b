"""Runs with blocks of local steps resume bit-identically inside a block, and after an epoch with other workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sparkdl.cluster.group.world import World
from sparkdl.cluster.inline import InlineCluster
from sparkdl.errors import InvalidInput
from sparkdl.io.serialization import pack_state, unpack_state
from sparkdl.training.strategies.elastic_averaging import ElasticAveraging
from sparkdl.training.strategies.gossip import Gossip
from sparkdl.training.strategies.local_sgd import LocalSGD
from sparkdl.training.strategies.reducers.topk import TopK
from tests.chaos.runs import assert_alike
from tests.training.test_resume import STEPS, Folder, essence, run

LOCAL = {
    "LocalSGD": LocalSGD(every=3, lr=0.7, momentum=0.9, nesterov=True, warmup=1),
    "LocalSGD that resets": LocalSGD(every=3, warmup=7, reset_inner=True),
    "LocalSGD of large changes": LocalSGD(every=3, reduce=TopK(0.2)),
    "ElasticAveraging": ElasticAveraging(every=3),
    "Gossip": Gossip("random", every=3),
}


@pytest.mark.parametrize("name", LOCAL)
def test_run_resumed_inside_a_block_is_bit_identical(name, pair, tmp_path):
    """The steps 2 and 7 are inside a block or a warm-up, the other ends an epoch."""
    whole = Folder(str(tmp_path))
    settings: dict[str, Any] = {"strategy": LOCAL[name], "patience": None, "epochs": 2}
    expected = run(pair, "Adam", whole, **settings)
    ends = [essence(tmp_path, 2 * STEPS, rank) for rank in range(2)]
    assert len(expected[0].history) == 2
    for step in (2, STEPS, 7):
        assert_alike(run(pair, "Adam", replace(whole, start=step), **settings), expected)
        assert [essence(tmp_path, 2 * STEPS, rank) for rank in range(2)] == ends
    first, second = (unpack_state(whole.file(2, rank).read_bytes()) for rank in range(2))
    assert first["shared"].keys() == {"sync"}
    assert pack_state(first["shared"]) == pack_state(second["shared"])
    weights = [state["local"]["replica"]["shared"]["parameters"]["head.weight"] for state in (first, second)]
    assert not torch.equal(*weights) or name == "LocalSGD that resets"  # whose replicas are equal in the warm-up


class Elastic(Folder):
    """A new rank resumes from rank 0's state, as with a ``Checkpointer``; each rank writes a file of its own."""

    def load(self, world: World, shards: list[str], live: object) -> dict[str, Any] | None:
        if not isinstance(self.start, int):
            return super().load(world, shards, live)
        files = [file for rank in range(9) if (file := self.file(self.start, rank)).exists()]
        states = [unpack_state(file.read_bytes()) for file in files]
        state: dict[str, Any] = states[world.rank if world.rank < len(states) else 0]
        for other in states:  # each rank has some of the best epoch's weights
            state["shared"]["stopping"] |= other["shared"]["stopping"]
        return state


@pytest.mark.parametrize("name", LOCAL)
def test_gang_of_another_size_resumes_at_the_end_of_an_epoch(name, pair, tmp_path):
    """From equal weights, with the outer momentum; both ways."""
    for number, (before, after) in enumerate([(pair, InlineCluster()), (InlineCluster(), pair)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        checkpointer, strategy = Elastic(str(folder)), LOCAL[name]
        run(before, "Adam", checkpointer, strategy=strategy, patience=None, epochs=1)
        saved = unpack_state(checkpointer.file(STEPS, 0).read_bytes())
        resumed = run(after, "Adam", replace(checkpointer, start=STEPS), strategy=strategy, patience=None, epochs=2)
        state = unpack_state(checkpointer.file(STEPS + 1, 0).read_bytes())
        assert [row["epoch"] for row in resumed[0].history] == [1, 2]
        start = saved["local"]["replica"]["shared"]["parameters"]
        kept = state["shared"]["sync"]
        if "start" in kept and name == "LocalSGD":
            assert all(torch.equal(kept["start"][index], value) for index, value in enumerate(start.values()))
            velocity = saved["shared"]["sync"]["velocity"]
            assert velocity.keys() == kept["velocity"].keys() != set()
            assert all(torch.equal(kept["velocity"][index], value) for index, value in velocity.items())
        if name == "ElasticAveraging" and after is pair:
            assert all(torch.equal(kept["center"][index], value) for index, value in enumerate(start.values()))


def test_buffers_are_averaged_at_the_end_of_a_block(pair, tmp_path):
    folder = Folder(str(tmp_path))
    for average in (True, False):
        run(pair, "Adam", folder, strategy=LocalSGD(every=3, average_buffers=average), epochs=1)
        for step, alike in ((2, False), (3, average), (5, True)):
            states = (unpack_state(folder.file(step, rank).read_bytes()) for rank in range(2))
            means = [state["local"]["replica"]["local"]["buffers"]["norm.running_mean"] for state in states]
            assert torch.equal(*means) == alike


def test_a_state_of_another_strategy_raises(tmp_path):
    folder = Folder(str(tmp_path))
    run(InlineCluster(), "Adam", folder, strategy=LocalSGD(every=3), epochs=1)
    with pytest.raises(InvalidInput, match="of the strategy LocalSGD, and this training's is AllReduce"):
        run(InlineCluster(), "Adam", replace(folder, start=2), epochs=1)
