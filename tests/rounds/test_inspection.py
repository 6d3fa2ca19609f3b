"""The look before the first round sees a row of the model's output, whatever the rows weigh."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from torch import Tensor, nn

from sparkdl.cluster.local_tasks import InlineTaskRunner, dealt
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import Shard
from sparkdl.data.transforms import Transforms
from sparkdl.errors import WorkerFailed
from sparkdl.ml.report import scalar_output
from sparkdl.rounds.inspection import InspectShard, inspect_shards
from sparkdl.training.objective import Objective

WEIGHED = Columns(
    (InputColumn("x"),), InputColumn("y", "int64"), row_id=InputColumn("id", "int64"), weight=InputColumn("w")
)
PLAIN = Columns((InputColumn("x"),), InputColumn("y", "int64"))
LOSS = nn.CrossEntropyLoss(ignore_index=-1)


def parts(columns: Columns, weights, labels) -> list[Shard]:
    """Two parts of four rows with these weights and labels; the ids of each are in the opposite order."""
    x = np.random.default_rng(1).normal(size=(4, 3)).astype("float32")
    table = pa.table({"x": list(x), "y": pa.array(labels, pa.int64()), "w": weights, "id": [3, 2, 1, 0]})
    return dealt([table, table], columns, 2)


def jobs(columns: Columns, weights, labels) -> InlineTaskRunner:
    return InlineTaskRunner(parts(columns, weights, labels))


def three(inputs: int = 3) -> Objective:
    """Scores of three classes."""
    return Objective(partial(nn.Linear, inputs, 3), LOSS)


SOME = [
    pytest.param(WEIGHED, [1.0, 2.0, 0.0, 0.0], [0, 1, 2, 0], id="rows of weight 0 come first"),
    pytest.param(WEIGHED, [0.0, 0.0, 0.0, 1.0], [0, 1, 2, 0], id="one row weighs anything"),
    pytest.param(PLAIN, [1.0] * 4, [-1, -1, 2, 0], id="ignored labels come first"),
]
NONE = [
    pytest.param(WEIGHED, [0.0] * 4, [0, 1, 2, 0], id="no row weighs anything"),
    pytest.param(PLAIN, [1.0] * 4, [-1] * 4, id="all labels are ignored"),
]
each = pytest.mark.parametrize(("columns", "weights", "labels"), [*SOME, *NONE])
each_of_some = pytest.mark.parametrize(("columns", "weights", "labels"), SOME)


@each
def test_output_and_inputs_are_known(columns, weights, labels):
    seen = inspect_shards(jobs(columns, weights, labels), InspectShard(three()))
    assert seen.output == [3]
    assert seen.inputs == [([3], "float32")]
    assert not scalar_output([seen.output])


@each
def test_a_model_that_does_not_take_the_rows_is_refused(columns, weights, labels):
    with pytest.raises(WorkerFailed, match=r"shard 0 in round 0: forward\(\) of Linear raised"):
        inspect_shards(jobs(columns, weights, labels), InspectShard(three(inputs=5)))


@each_of_some
def test_a_loss_that_does_not_take_the_output_is_refused(columns, weights, labels):
    wrong = Objective(lambda: nn.Sequential(nn.Linear(3, 3), nn.Unflatten(1, (3, 1))), LOSS)
    with pytest.raises(WorkerFailed, match=r"shard 0 in round 0: .*the loss raised"):
        inspect_shards(jobs(columns, weights, labels), InspectShard(wrong))


def two_inputs(inputs, target):
    return (inputs[0], inputs[0][:, :1].double()), target


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return self.linear(x) + other.float()


@each
def test_what_is_seen_is_what_collate_makes(columns, weights, labels):
    transforms = Transforms(two_inputs, denominators=three().criterion().denominators)
    seen = inspect_shards(jobs(columns, weights, labels), InspectShard(Objective(Both, LOSS), transforms=transforms))
    assert seen.output == [3]
    assert seen.inputs == [([3], "float32"), ([1], "float64")]


def test_a_row_that_weighs_is_preferred():
    """The loss has a mean wherever any row of the part weighs something: it is called with the first of those."""
    called = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        called.append(target.tolist())
        return nn.functional.cross_entropy(output, target, reduction="none")

    work = InspectShard(Objective(partial(nn.Linear, 3, 3), loss))
    for part in parts(WEIGHED, [0.0, 3.0, 0.0, 1.0], [0, 1, 0, 2]):
        work.map({}, part)
    assert called == [[2, 1], [2, 1]]
