"""A loop of your own over the rows of a DataFrame: torch DDP inside a gang, fed by sparkdl.

    python examples/own_loop.py
    spark-submit --master 'local-cluster[2,1,1024]' examples/own_loop.py

The rows are scikit-learn's digits. docs/own-loop.md says what the loop may rely on.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from sparkdl import Columns, InputColumn, SparkCluster
from sparkdl.cluster.group.world import World
from sparkdl.data import Batcher, Plan
from sparkdl.data.shard import Shard

EPOCHS, BATCH = 15, 128


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def train(world: World, shard: Shard) -> dict[str, Any]:
    """What every member does. torch.distributed's default group is up, and goes when this returns."""
    torch.manual_seed(0)
    model = DistributedDataParallel(net().to(world.device))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    plan = Plan(shard.shard_rows, batch_size=BATCH, seed=0)  # 128 rows a step over all members together
    batcher = Batcher(shard, plan, world.device)
    loss = torch.zeros(())
    for epoch in range(EPOCHS):
        for batch in batcher.batches(epoch):
            optimizer.zero_grad()
            # DDP averages gradients over members. For the mean over the rows of the step, of which each member has
            # another number, maybe none: the sum of its rows' losses, over the step's rows, times the members.
            losses = cross_entropy(model(*batch.inputs), batch.target, reduction="sum")
            (losses * world.size / batch.total).backward()
            optimizer.step()
            loss = losses.detach() / batch.total
    dist.all_reduce(loss)
    weights = {name: tensor.cpu().numpy() for name, tensor in model.module.state_dict().items()}
    return {"rows": shard.rows, "loss": loss.item(), "weights": weights if world.rank == 0 else None}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on handwritten digits with a loop of your own.")
    parser.add_argument("--members", type=int, default=2, help="tasks that train together, one slot each")
    members = parser.parse_args().members

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    x_train, x_test, y_train, y_test = train_test_split(images, labels, test_size=0.2, random_state=0)
    with SparkSession.builder.appName("own loop").getOrCreate() as spark:
        rows = pa.table({"features": pa.array(list(x_train)), "label": pa.array(y_train)})
        columns = Columns(inputs=(InputColumn("features"),), target=InputColumn("label"))
        found = SparkCluster(spark, members).gang(train, spark.createDataFrame(rows), columns)
    print("rows of each member:", [member["rows"] for member in found])
    print(f"loss of the last step {found[0]['loss']:.4f}")

    model = net()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in found[0]["weights"].items()})
    with torch.inference_mode():
        right = int((model(torch.from_numpy(x_test)).argmax(1).numpy() == y_test).sum())
    print(f"accuracy {right / len(y_test):.4f} ({right} of {len(y_test)} rows)")


if __name__ == "__main__":
    main()
