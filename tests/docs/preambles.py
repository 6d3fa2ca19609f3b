"""The names that pages assume, and what their blocks must leave: a function for each such page.

A preamble calls ``execute`` once with the assumed names; it runs the blocks and returns their namespace.
"""

from __future__ import annotations

import gzip
import itertools
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import DecisionTreeClassifier, LogisticRegression, RandomForestClassifier
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import FeatureHasher
from pyspark.ml.functions import array_to_vector
from sklearn.datasets import load_digits
from torch import Tensor, nn

from sparkdl import Columns, InputColumn, SparkCluster, TorchClassifier, TorchModel
from sparkdl.cluster.group.rendezvous import RendezvousResult, RendezvousSpec, join
from sparkdl.cluster.shutdown import stop_requested
from sparkdl.data.batching import Batcher
from sparkdl.data.sampler import Plan
from sparkdl.io.weights import pack
from sparkdl.ml.persistence.registry import Versions
from tests.data.spooled import shards_of
from tests.rounds.data import real

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 400


class Net(nn.Module):
    """The reader's own model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, features: Tensor) -> Tensor:
        return self.layer(features)


def table(first: int = 0, rows: int = ROWS) -> pa.Table:
    """Rows of scikit-learn's digits."""
    images, labels = (array[first : first + rows] for array in load_digits(return_X_y=True))
    return pa.table(
        {
            "features": pa.array(list((images / 16).astype(np.float32)), pa.list_(pa.float32())),
            "label": pa.array(labels, pa.int64()),
            "held_out": pa.array(np.arange(rows) % 5 == 0),
        }
    )


def frames(spark: SparkSession) -> dict[str, DataFrame]:
    return {"train": spark.createDataFrame(table()), "test": spark.createDataFrame(table(ROWS, 100))}


# ---- pages without Spark ----------------------------------------------------------------------------------------


def data_types(execute, folder):
    augment = execute({"torch": torch})["augment"]
    image = torch.arange(2 * 3 * 3.0).reshape(2, 3, 3)
    (flipped,), target = augment((image,), torch.tensor([1, 2]), torch.Generator().manual_seed(0))
    for before, after in zip(image, flipped, strict=True):
        assert torch.equal(after, before) or torch.equal(after, before.flip(-1))
    assert target.tolist() == [1, 2]


def gpu(execute, folder):
    names = execute({"model": TorchModel(factory=partial(nn.Linear, 64, 10), weights=b"")})
    assert (names["clf"].getDevice(), names["clf"].getPrecision(), names["clf"].getTaskCpus()) == ("cuda", "bf16", 4)
    assert (names["scorer"].getDevice(), names["model"].getDevice()) == ("cuda", "cpu")


def security(execute, folder):
    assert execute({})["clf"].getAllowUnencrypted()


def shortened(folder, rows, *names):
    """The header and the first rows of tables of the real data, in the folder ``data``."""
    (folder / "data").mkdir(exist_ok=True)
    for name in names:
        with real(name).open(encoding="utf-8") as file:
            (folder / "data" / name).write_text("".join(itertools.islice(file, 1 + rows)), encoding="utf-8")


# ---- pages with Spark -------------------------------------------------------------------------------------------


def readme(execute, folder, spark):
    model = execute({})["model"]
    assert (len(model.history), model.report["workers"]) == (10, [2])


def quickstart(execute, folder, spark):
    names = execute({})
    assert names["spark"] is spark
    assert names["model"].report["workers"] == [2]
    assert (folder / "models/digits").is_dir()


def databricks(execute, folder, spark):
    assert execute({"spark": spark})["workers"] >= 1


def ensembles(execute, folder, spark):
    kinds = (DecisionTreeClassifier, LogisticRegression, RandomForestClassifier, MulticlassClassificationEvaluator)
    assumed = {kind.__name__: kind for kind in kinds}
    names = execute({"Net": Net, "partial": partial, "torch": torch, **assumed, **frames(spark)})
    assert len(names["model"].models) == 2
    assert 0 <= names["model"].oobScore <= 1
    assert (folder / "runs/digits/members").is_dir()


def fine_tune(execute, folder, spark):
    (folder / "data").mkdir()
    rows = frames(spark)
    names = execute({"train": rows["train"], "new": rows["test"]})
    assert names["tuned"].numClasses == 2
    assert len(names["grouped"].history) == 2


def images(execute, folder, spark):
    from PIL import Image

    (folder / "data").mkdir()
    for name, size in {"t10k-images-idx3-ubyte.gz": 16 + 2000 * 784, "t10k-labels-idx1-ubyte.gz": 8 + 2000}.items():
        with gzip.open(real(name)) as file:  # the first 2000 images
            (folder / "data" / name).write_bytes(gzip.compress(file.read(size), 1))
    with gzip.open(real("t10k-images-idx3-ubyte.gz")) as file:
        pixels = np.frombuffer(file.read(16 + 60 * 784), np.uint8, offset=16).reshape(-1, 28, 28)
    for index, image in enumerate(pixels):
        path = folder / f"data/png/{index % 10}/{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    names = execute({"spark": spark})
    (moved,), _ = names["flipped"]((torch.zeros(3, 28, 28, dtype=torch.uint8),), None, torch.Generator())
    assert moved.shape == (3, 28, 28)
    assert names["decode"](names["labelled"].first()["content"]).shape == (28, 28)
    assert names["segmented"].evaluate(names["drawn"]).accuracy > 0.95


def migration(execute, folder, spark):
    (folder / "data").mkdir()
    pq.write_table(table(), folder / "data/digits")
    names = execute({"spark": spark, "partial": partial, "torch": torch, "nn": nn, **frames(spark)})
    assert names["weights"]["weight"].shape == (10, 64)
    assert "valid_loss" in names["model"].history[0]


def own_loop(execute, folder, spark):
    """The lines of a loop run on a worker that is the only one of its gang, in this process."""
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments import TorchElasticEnvironment

    columns = Columns(inputs=(InputColumn("features"),), target=InputColumn("label"), weight=InputColumn("weight"))
    rows = table().select(["features", "label"])
    (shard,) = shards_of([rows.append_column("weight", pa.array([1.0] * rows.num_rows))], columns)
    alone = RendezvousResult([{"host": "here", "address": "127.0.0.1"}], None)
    kinds = (SparkCluster, Batcher, Plan, Fabric, TorchElasticEnvironment)
    with join(RendezvousSpec(0, 1, "own-loop", 0, "127.0.0.1"), alone) as world:
        names = execute(
            {kind.__name__: kind for kind in kinds}
            | {
                "dist": dist,
                "spark": spark,
                "frame": frames(spark)["train"],
                "train": lambda world, shard: shard.rows,
                "columns": ["features"],
                "world": world,
                "shard": shard,
                "model": nn.Linear(64, 10),
                "loss": nn.CrossEntropyLoss(reduction="none"),
                "batch": next(iter(Batcher(shard, Plan(shard.shard_rows, batch_size=256, seed=0)).batches(0))),
            }
        )
    assert sum(names["found"]) == rows.num_rows
    assert torch.is_nonzero(names["model"].weight.grad.abs().sum())
    assert names["total"] == 256


def pipeline(execute, folder, spark):
    versions = Versions(f"{folder}/models/adult")
    train = frames(spark)["train"]
    train = train.withColumn("features", array_to_vector(train["features"].cast("array<double>")))
    Pipeline(stages=[LogisticRegression(maxIter=2)]).fit(train).save(versions.model("2026-11-22"))
    versions.complete("2026-11-22", {"date": "2026-11-22"})
    versions.publish("2026-11-22")
    torch_model = TorchModel(factory=partial(nn.Linear, 8, 2), weights=pack(nn.Linear(8, 2)), kind="classifier")
    rows = spark.createDataFrame([(39.0, "Private"), (52.0, None)], "age double, workclass string")
    torch_model.columnTypes = dict(rows.dtypes)
    hasher = FeatureHasher(inputCols=["age", "workclass"], outputCol="features", numFeatures=8)
    PipelineModel(stages=[hasher, torch_model]).save(f"{folder}/models/adult_pipeline")
    with mlflow_store(folder):
        names = execute({"spark": spark, "rows": rows})
    assert names["name"] == "2026-11-22"
    assert names["model"].transform(train).where("prediction = label").count() > 0
    assert list(names["scored"]) == ["prediction", "probability", "rawPrediction"]


@contextmanager
def mlflow_store(folder):
    """A store of local files, as MLflow's default."""
    import mlflow

    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
            patch.setenv(name, "true")
        before = mlflow.get_tracking_uri()
        mlflow.set_tracking_uri((folder / "store").as_uri())
        try:
            yield
        finally:
            mlflow.set_tracking_uri(before)


def recovery(execute, folder, spark):
    names = execute({"Net": Net, "spark": spark, **frames(spark)})
    assert (folder / "runs/digits/checkpoints").is_dir()
    # The second fit resumes the same finished run, and trains no step.
    assert names["model"].report["restarts"] == 1
    assert len(names["model"].history) == 2
    assert names["clf"].getMinWorkers() == 1
    assert stop_requested() is None


def rounds(execute, folder, spark):
    names = execute({"Net": Net, "partial": partial, "torch": torch, **frames(spark)})
    assert [row["round"] for row in names["model"].history] == [1, 2]
    assert (folder / "runs/digits/checkpoints").is_dir()


def scoring(execute, folder, spark):
    (folder / "data").mkdir()
    rows = frames(spark)
    names = execute({"spark": spark, **rows})
    assert names["eights"][0] <= names["eights"][1]
    assert spark.read.parquet(f"{folder}/scored").columns == ["features", "label", "held_out", "prediction"]
    assert spark.read.parquet(f"{folder}/scored-stream").count() == rows["test"].count()


class Wide(Net):
    """The reader's own model, with a hidden layer."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def search(execute, folder, spark):
    names = execute({"Net": Wide, **frames(spark)})
    assert len(names["model"].trials) == 3
    assert (folder / "runs/churn-search/report.html").is_file()


def layouts(execute, folder, spark):
    names = execute({"Net": Net, "directory": str(folder / "run"), **frames(spark)})
    assert names["model"].module().state_dict().keys() == names["wide"].module().state_dict().keys()
    assert names["deep"].getMicroBatches() == 4


def sizing(execute, folder, spark):
    assert execute({"spark": spark, **frames(spark)})["estimate"] > 0


def strategies(execute, folder, spark):
    assert "round" in execute(frames(spark))["model"].history[0]  # of the last strategy


def parameter_server(execute, folder, spark):
    assert 0 <= execute(frames(spark))["model"].history[-1]["max_clock_distance"] <= 4


def tabular(execute, folder, spark):
    shortened(folder, 8000, "adult.data")
    shortened(folder, 4000, "adult.test")
    names = execute({"spark": spark})
    assert names["one_hot"] > 0.8
    assert len(names["search"].getEstimatorParamMaps()) == 4


def embeddings(execute, folder, spark):
    shortened(folder, 8000, "adult.data")
    names = "age workclass fnlwgt education years marital occupation relationship race sex gain loss hours country Y"
    rows = spark.read.csv(str(folder / "data/adult.data"), header=True, ignoreLeadingWhiteSpace=True)
    rows = rows.toDF(*names.split())
    rows = rows.withColumn("label", rows["Y"].startswith(">50K").cast("int"))
    names = execute({"spark": spark, "train": rows, "test": rows.limit(1000)})
    assert names["model"].evaluate(names["test"]).auc > 0.8


def text(execute, folder, spark):
    plays = real("tinyshakespeare.txt").read_text(encoding="utf-8")
    (folder / "data").mkdir()
    # Parts of two plays, with speeches of both speakers.
    parts = (plays[plays.index(speaker) :][:40_000] for speaker in ("GLOUCESTER:", "ROMEO:"))
    (folder / "data/tinyshakespeare.txt").write_text("\n\n".join(parts), encoding="utf-8")
    names = execute({"spark": spark})
    assert names["named"].transform(names["words"]).where("label = prediction").count() > 0
    assert names["tagged"].evaluate(names["spelled"]).accuracy > 0.95


def trackers(execute, folder, spark):
    import mlflow
    import pandas

    with mlflow_store(folder):
        execute({"Net": Net, "mlflow": mlflow, "pandas": pandas, **frames(spark)})
    assert list((folder / "runs/digits/tb").glob("**/events.out.*"))


def tuning(execute, folder, spark):
    clf = TorchClassifier(model=Net, numWorkers=2, epochs=1)
    names = execute({"clf": clf, "spark": spark, **frames(spark)})
    assert set(names["report"]) >= {"verdict", "phases", "skew_by_rank", "slowest_rank", "train_seconds"}


def train(execute, folder, spark):
    names = execute({"Net": Net, **frames(spark)})
    assert {"loss", "valid_loss", "valid_accuracy", "valid_auc"} <= names["validated"].history[0].keys()
    assert "best_epoch" in names["stopped"].report
    assert all(row["weight_norm"] > 0 for row in names["observed"].history)
    assert min(names["measured"].accuracy) > 0.6


PREAMBLES = {
    "README.md": readme,
    "docs/clusters/databricks.md": databricks,
    "docs/data-types.md": data_types,
    "docs/fine-tune.md": fine_tune,
    "docs/own-loop.md": own_loop,
    "docs/parameter-server.md": parameter_server,
} | {
    f"docs/{function.__name__}.md": function
    for function in (
        *(embeddings, ensembles, gpu, images, layouts, migration, pipeline, quickstart, recovery),
        *(rounds, scoring, search, security, sizing, strategies, tabular, text, trackers, train, tuning),
    )
}
"""The preamble of each page that assumes something; with a parameter ``spark`` the blocks need a session."""
