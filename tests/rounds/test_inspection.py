"""The inspection before the first round sees a row of the model's output, whatever the rows weigh."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from torch import Tensor, nn

from sparkdl.cluster.local_tasks import InlineTaskRunner, ShardedData
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.transforms import Transforms
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.rounds.inspection import InspectShard, inspect_shards
from sparkdl.training.objective import Objective

WEIGHED = Columns(
    (InputColumn("x"),), InputColumn("y", "int64"), row_id=InputColumn("id", "int64"), weight=InputColumn("w")
)
PLAIN = Columns((InputColumn("x"),), InputColumn("y", "int64"))
LOSS = nn.CrossEntropyLoss(ignore_index=-1)
SCORES = Objective(partial(nn.Linear, 3, 3), LOSS)


def data(columns: Columns, weights, labels) -> ShardedData:
    """Two shards of four rows each, in descending order of their ids."""
    x = np.random.default_rng(1).normal(size=(4, 3)).astype("float32")
    table = pa.table({"x": list(x), "y": pa.array(labels, pa.int64()), "w": weights, "id": [3, 2, 1, 0]})
    return ShardedData([table, table], columns, 2)


class Both(nn.Linear):
    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return super().forward(x) + other.float()


def two_inputs(inputs, target):
    return (inputs[0], inputs[0][:, :1].double()), target


@pytest.mark.parametrize(
    ("columns", "weights", "labels"),
    [
        pytest.param(WEIGHED, [0.0, 0.0, 0.0, 1.0], [0, 1, 2, 0], id="one row has weight"),
        pytest.param(PLAIN, [1.0] * 4, [-1, -1, 2, 0], id="first labels are ignored"),
    ],
)
def test_shapes_and_errors_are_seen_for_any_weights(columns, weights, labels):
    def seen(objective: Objective, transforms: Transforms | None = None):
        runner = InlineTaskRunner(data(columns, weights, labels))
        return inspect_shards(runner, InspectShard(objective, transforms=transforms))

    plain = seen(SCORES)
    assert (plain.output, plain.inputs) == ([3], [([3], "float32")])
    collated = seen(
        Objective(partial(Both, 3, 3), LOSS), Transforms(two_inputs, denominators=SCORES.criterion().denominators)
    )
    assert (collated.output, collated.inputs) == ([3], [([3], "float32"), ([1], "float64")])
    with pytest.raises(WorkerFailed, match=r"shard 0 in round 0: forward\(\) of Linear raised"):
        seen(Objective(partial(nn.Linear, 5, 3), LOSS))
    with pytest.raises(InvalidInput, match=r"shard 0 in round 0: CrossEntropyLoss takes scores \[B, classes, ...\]"):
        seen(Objective(lambda: nn.Sequential(nn.Linear(3, 3), nn.Unflatten(1, (3, 1))), LOSS))


def test_loss_is_called_with_first_row_of_positive_weight():
    called = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        called.append(target.tolist())
        return nn.functional.cross_entropy(output, target, reduction="none")

    for shard in data(WEIGHED, [0.0, 3.0, 0.0, 1.0], [0, 1, 0, 2]).shards():
        InspectShard(Objective(partial(nn.Linear, 3, 3), loss)).map({}, shard)
    assert called == [[2, 1, 0, 0], [2, 1, 0, 0]]
