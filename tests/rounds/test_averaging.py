"""Parallel SGD by itself: what it comes to with one part, and the weights of an average."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.errors import InvalidInput
from sparkdl.feed.sampling import Plan, generator
from sparkdl.objective import Objective
from sparkdl.rounds.averaging import ParallelSGD, average, weighed
from tests.contracts.algorithm_contract import data, objective, parts_of, states


def test_one_part_is_local_training():
    """Two epochs in the order of rows that the seed gives, by a loop of its own."""
    algorithm = ParallelSGD(rounds=1, epochs=2, batch_size=8)
    first, last = states(algorithm, parts_of(90), 1)
    module = objective().build()
    module.load_state_dict(first["weights"])
    arrays = {name: torch.from_numpy(array) for name, array in data().items()}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    seed = generator(3, 0, 0).initial_seed()
    for epoch in range(2):
        for rows in Plan((90,), 8, seed).permutation(0, epoch).long().split(8):
            x, y, w = (arrays[name][rows] for name in ("x", "y", "w"))
            optimizer.zero_grad()
            ((module(x).squeeze(-1) - y).square() * w).sum().div(w.sum()).backward()
            optimizer.step()
    for name, tensor in module.state_dict().items():
        assert torch.allclose(last["weights"][name], tensor, rtol=1e-12)


@pytest.mark.parametrize("weighted", [True, False])
def test_parts_count_as_their_rows_weigh(weighted):
    """Each part's own training, put together by hand; a part without rows counts nothing."""
    algorithm, parts = ParallelSGD(weighted=weighted), parts_of(60, 0, 30)
    first, last = states(algorithm, parts, 1)
    w = data()["w"]
    shares = np.array([w[:60].sum(), 0.0, w[60:].sum()] if weighted else [1.0, 0.0, 1.0])
    trained = []
    for part in parts:
        update, _ = algorithm.map(objective(), first, part, None)
        trained.append(update["weights/weight"] / max(float(update["share"]), 1e-300))
    expected = sum(share * each for share, each in zip(shares / shares.sum(), trained, strict=True))
    assert torch.allclose(last["weights"]["weight"], expected, rtol=1e-12)


def test_whole_numbers_are_averaged_and_rounded():
    like = {"count": torch.tensor(0), "mean": torch.zeros(2)}
    one = weighed({"count": torch.tensor(3), "mean": torch.tensor([1.0, 0.0])}, 1.0)
    other = weighed({"count": torch.tensor(6), "mean": torch.tensor([0.0, 1.0])}, 2.0)
    found = average(ParallelSGD().reduce(one, other), like)
    assert found["count"].item() == 5
    assert found["count"].dtype == torch.int64
    assert torch.allclose(found["mean"], torch.tensor([1 / 3, 2 / 3]))


def test_statistics_of_batch_normalisation_are_averaged():
    """Running statistics are no parameters, and come back from the parts all the same."""
    wanted = Objective(_normalised, nn.MSELoss(), objective().optimizer, precision="fp64")
    first, last = states(ParallelSGD(batch_size=10), parts_of(45, 45), 1, wanted)
    assert not torch.equal(first["weights"]["0.running_mean"], last["weights"]["0.running_mean"])
    assert last["weights"]["0.num_batches_tracked"].item() == 5


def _normalised() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))


@pytest.mark.parametrize("name", ["rounds", "epochs", "batch_size"])
def test_what_is_refused(name):
    with pytest.raises(InvalidInput, match=f"ParallelSGD has {name}=0; expected at least 1"):
        ParallelSGD(**{name: 0})
