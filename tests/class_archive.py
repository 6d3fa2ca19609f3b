"""``python -m tests.class_archive`` archives Spark's classes for the JVMs of the tests (class data sharing, JEP 350).

It takes a minute and saves each JVM a third of its processor time. A JVM without a matching archive does without it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
ARCHIVE = ROOT / "build" / "classes.jsa"

# The optimising compiler would take half of the processor time. Without it, Java keeps 48 MB of compiled code, fewer
# than the tests need.
_SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"
# Tests have few rows: code generated for each query takes longer to compile than it saves.
_INTERPRETED = "-Dspark.sql.codegen.wholeStage=false"
_PRELOADED = "-Dspark.python.daemon.module=sparkdl.spark.python_daemon"
_LIMIT = 600  # seconds; a busy machine took more than two minutes
_QUIET = "-Xlog:cds*=off -Xlog:class+path*=off"  # whether the archive fits is no news for a job's output


def share_classes() -> None:
    """Let the JVMs of this process and its children use the archive, interpret queries and fork workers with torch."""
    shared = f'-XX:SharedArchiveFile="{ARCHIVE}" {_QUIET}' if ARCHIVE.exists() else ""
    options = os.environ.get("JDK_JAVA_OPTIONS", "")
    os.environ["JDK_JAVA_OPTIONS"] = " ".join(filter(None, (options, _SHORT, shared, _INTERPRETED, _PRELOADED)))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def write(archive: Path) -> None:
    """Archive the classes that a JVM loads for the work of the tests."""
    from pyspark import SparkContext

    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_DIRS": folder, "SPARK_LOCAL_IP": "127.0.0.1"}
        written = Path(folder, "classes.jsa")
        options = f"{_SHORT} -Xlog:disable -XX:ArchiveClassesAtExit={written}"
        # In one JVM, what a driver loads and what an executor does; then the daemons of a cluster.
        with _session("local[2]", options, folder) as spark:
            _work(spark, folder)
        with _session("local-cluster[1,1,1024]", options, folder) as spark:
            spark.range(10).repartition(1).count()
            jvm: Any = spark.sparkContext._jvm  # the class that an executor begins with:
            jvm.java.lang.Class.forName("org.apache.spark.executor.CoarseGrainedExecutorBackend")
        gateway: Any = SparkContext._gateway
        gateway.shutdown()
        gateway.proc.stdin.close()  # its JVM ends with it, and writes the archive as the last thing
        try:
            gateway.proc.wait(_LIMIT)
        except subprocess.TimeoutExpired:
            gateway.proc.kill()
            print(f"Java wrote no archive of classes within {_LIMIT} s; the tests do without it", file=sys.stderr)
            return
        if not written.exists():
            print("this Java writes no archive of classes; the tests do without it", file=sys.stderr)
            return
        archive.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(shutil.copy(written, archive.with_suffix(".tmp")))
        unfinished.replace(archive)


def _session(master: str, options: str, folder: str) -> SparkSession:
    from pyspark.sql import SparkSession

    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.extraJavaOptions": options,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": Path(folder, "warehouse").as_uri(),
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
    }
    return SparkSession.builder.master(master).config(map=settings).getOrCreate()


def _work(spark: SparkSession, folder: str) -> None:
    """Files, shuffles, Python workers, a barrier stage, pyspark.ml."""
    import pyarrow as pa
    from pyspark.ml.evaluation import BinaryClassificationEvaluator, MulticlassClassificationEvaluator
    from pyspark.ml.feature import VectorAssembler
    from pyspark.sql import functions as F

    table = pa.table({"x": [[0.5, 1.5]] * 40, "label": [0.0, 1.0] * 20})
    rows = spark.createDataFrame(table).withColumn("id", F.monotonically_increasing_id())
    rows.write.parquet(f"{folder}/rows")
    rows = spark.read.parquet(f"{folder}/rows")
    rows.repartition(2, "id").mapInArrow(_same, rows.schema, barrier=True).collect()
    cached = rows.repartition(2).mapInArrow(_same, rows.schema).persist()
    cached.groupBy("label").agg(F.count("*"), F.avg("id"), F.sum(F.get("x", F.lit(0)))).collect()
    assembled = VectorAssembler(inputCols=["label", "id"], outputCol="rawPrediction").transform(cached)
    scored = assembled.withColumn("prediction", F.col("label"))
    MulticlassClassificationEvaluator(metricName="accuracy").evaluate(scored)
    BinaryClassificationEvaluator(rawPredictionCol="label").evaluate(scored.drop("rawPrediction"))
    spark.createDataFrame([("{}",)], ["value"]).coalesce(1).write.text(f"{folder}/text")
    spark.read.json(f"{folder}/text").collect()
    spark.sparkContext.parallelize(range(4), 2).map(str).collect()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    write(ARCHIVE)
