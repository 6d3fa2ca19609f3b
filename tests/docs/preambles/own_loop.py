"""docs/own-loop.md: a gang on Spark, and for the lines of a loop a member of a gang of one in this process."""

from __future__ import annotations

import pyarrow as pa
import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import TorchElasticEnvironment
from torch import nn

from sparkdl import Columns, InputColumn, SparkCluster
from sparkdl.cluster.group.network import Address
from sparkdl.cluster.group.rendezvous import RendezvousResult, RendezvousSpec, join
from sparkdl.data.batching import Batcher
from sparkdl.data.sampler import Plan
from tests.data.spooled import parts_of
from tests.docs.digits import frames, table


def page(execute, folder, spark):
    frame = frames(spark)["train"]
    columns = Columns(inputs=(InputColumn("features"),), target=InputColumn("label"), weight=InputColumn("weight"))
    rows = table().select(["features", "label"])
    (part,) = parts_of([rows.append_column("weight", pa.array([1.0] * rows.num_rows))], columns)
    alone = RendezvousResult([{"host": "here", "address": "127.0.0.1"}], None)
    with join(RendezvousSpec(0, 1, "own-loop", 0, Address("127.0.0.1")), alone) as world:
        found = execute(
            {
                "SparkCluster": SparkCluster,
                "Batcher": Batcher,
                "Plan": Plan,
                "Fabric": Fabric,
                "dist": dist,
                "spark": spark,
                "TorchElasticEnvironment": TorchElasticEnvironment,
                "frame": frame,
                # By value: members need not import what this module imports.
                "train": lambda world, part: part.rows,
                "columns": ["features"],
                "world": world,
                "part": part,
                "model": nn.Linear(64, 10),
                "loss": nn.CrossEntropyLoss(reduction="none"),
                "batch": next(iter(Batcher(part, Plan(part.parts, batch_size=256, seed=0)).batches(0))),
            }
        )
    assert sum(found["found"]) == rows.num_rows
    assert torch.is_nonzero(found["model"].weight.grad.abs().sum())
    assert found["total"] == 256
