"""What Spark says of rows that are not what the pipeline needs, and what it says of anything else."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.ml.feature import FeatureHasher

from sparkdl.cli.exit_codes import BadInput
from sparkdl.cli.pipeline.spark_errors import reading_rows

SCHEMA = "a double, b double"


@pytest.fixture
def raw(spark, tmp_path):
    """Readers of files that something is wrong with, by name."""
    texts = {"letters": "a,b\n1,2\nx,3\n", "swapped": "b,a\n1,2\n"}
    for name, text in texts.items():
        (tmp_path / f"{name}.csv").write_text(text)
    (tmp_path / "short.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 1000)[:40])
    (tmp_path / "torn.parquet").write_bytes(b"PAR1" + b"x" * 100 + b"PAR1")

    def read(name: str, **options: object):
        path = str(next(Path(tmp_path).glob(f"{name}.*"), tmp_path / name))
        if name == "torn":
            return spark.read.schema(SCHEMA).parquet(path)
        return spark.read.schema(SCHEMA).options(header=True, **options).csv(path)

    return read


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (lambda raw: raw("absent"), "PATH_NOT_FOUND"),
        (lambda raw: raw("torn"), "FAILED_READ_FILE"),
        (lambda raw: raw("short"), "FAILED_READ_FILE"),
        (lambda raw: raw("letters", mode="FAILFAST"), "MALFORMED_RECORD_IN_PARSING"),
        (lambda raw: raw("swapped", enforceSchema=False), "FAILED_READ_FILE"),
        (lambda raw: raw("swapped").select("c"), "UNRESOLVED_COLUMN"),
        (lambda raw: raw("swapped").selectExpr("cast('x' as int)"), "CAST_INVALID_INPUT"),
        (lambda raw: FeatureHasher(inputCols=["c"], outputCol="f").transform(raw("swapped")), "c"),
    ],
    ids=["absent", "torn", "short", "letters", "swapped", "no column", "cast", "no column of a stage"],
)
def test_bad_rows_are_bad_input(raw, tmp_path, rows, told):
    said = f"the rows cannot be used: .*{told}"
    with pytest.raises(BadInput, match=said) as caught, reading_rows():
        rows(raw).write.parquet(str(tmp_path / "out"))
    assert "\n" not in str(caught.value)


def test_what_is_not_the_rows_fault_stays_what_it_is(spark, raw, tmp_path):
    def fails(batches):
        raise ZeroDivisionError

    with pytest.raises(PySparkException, match="ZeroDivisionError"), reading_rows():
        raw("swapped").mapInPandas(fails, SCHEMA).collect()
    with pytest.raises(Py4JJavaError, match="NullPointer"), reading_rows():
        spark._jvm.java.util.Objects.requireNonNull(None)
