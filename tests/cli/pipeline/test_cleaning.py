"""Cleaning and splitting rows of Spark, and Spark's errors about rows that cannot be read."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.ml.feature import FeatureHasher

from sparkdl.cli.exit_codes import BadInput
from sparkdl.cli.pipeline.cleaning import CleaningStage, SplitStage
from sparkdl.cli.pipeline.spark_errors import reading_rows
from sparkdl.errors import InvalidInput

DAY = date(2026, 11, 22)
SCHEMA = "a double, b double"


@pytest.fixture(scope="module")
def raw(spark):
    rows = [(n, f" {n % 5}", "yes." if n % 3 else "no", None if n == 7 else n) for n in range(200)]
    return spark.createDataFrame(rows, "id int, text string, answer string, maybe int").cache()


def values(rows, split, column):
    """The distinct values of a column in the training rows, and in the validation rows."""
    validation = split(rows, DAY)
    return [{row[column] for row in rows.where(side).select(column).collect()} for side in (~validation, validation)]


def test_sql_cleans_rows(raw):
    clean = CleaningStage(
        columns={"text": "cast(trim(text) as int)", "double": "2 * text"},
        label="cast(answer like 'yes%' as int)",
        where="maybe is not null",
        drop=["answer", "maybe"],
    )
    rows = clean(raw, labelled=True)
    assert rows.columns == ["id", "text", "double", "label"]
    assert rows.count() == 199
    assert tuple(rows.where("id = 13").first()) == (13, 3, 6, 1)


def test_missing_columns_raise_except_those_of_the_label_of_rows_to_score(raw):
    clean = CleaningStage(columns={"text": "trim(text)"}, label="answer = 'yes'", drop=["answer"])
    assert clean(raw.drop("answer"), labelled=False).columns == ["id", "text", "maybe"]
    with pytest.raises(BadInput, match=r"rows with the columns id, text, maybe cannot be cleaned: .*answer"):
        clean(raw.drop("answer"), labelled=True)
    for where in ("nobody > 3", "this is no sql"):
        with pytest.raises(BadInput, match="rows with the columns id, text, answer, maybe cannot be cleaned"):
            CleaningStage(where=where)(raw, labelled=True)
    with pytest.raises(BadInput, match="split needs the columns who; the rows have id, text"):
        SplitStage(hash=["who"])(raw, DAY)


def test_split_by_a_hash_is_the_same_on_any_partition(raw):
    split = SplitStage(share=0.25)
    train, validation = values(raw, split, "id")
    assert not train & validation
    assert train | validation == set(range(200))
    assert 25 <= len(validation) <= 75
    assert values(raw.repartition(3), split, "id") == [train, validation]
    twice = raw.union(raw)
    assert twice.where(split(twice, DAY)).count() == 2 * len(validation)  # equal rows have the same side
    assert not set.intersection(*values(raw, SplitStage(hash=["text"], share=0.5), "text"))


@pytest.mark.parametrize("kind", ["date", "timestamp", "string"])
def test_last_days_are_validation_rows_and_later_ones_are_left_out(spark, kind):
    days = [(str(DAY - timedelta(days=n)),) for n in range(-3, 20)]
    rows = spark.createDataFrame(days, "day string").selectExpr(f"cast(day as {kind}) as day")
    sides = values(rows, SplitStage(date="day", days=7), "day")
    train, validation = (sorted(str(day)[:10] for day in side) for side in sides)
    assert validation == [str(DAY - timedelta(days=n)) for n in range(6, -1, -1)]
    assert train == [str(DAY - timedelta(days=n)) for n in range(19, 6, -1)]


def test_split_rejects_date_and_hash():
    with pytest.raises(InvalidInput, match="split has date and hash; expected one of them"):
        SplitStage(date="day", hash=["id"])


# ---- errors of Spark --------------------------------------------------------------------------------------------


@pytest.fixture
def read(spark, tmp_path):
    """Readers of bad files, by name."""
    (tmp_path / "letters").write_text("a,b\n1,2\nx,3\n")
    (tmp_path / "swapped").write_text("b,a\n1,2\n")
    (tmp_path / "torn").write_bytes(b"PAR1" + b"x" * 100 + b"PAR1")

    def read(name: str, kind: str = "csv", **options: object):
        reader = spark.read.schema(SCHEMA).options(header=True, **options)
        return reader.format(kind).load(str(tmp_path / name))

    return read


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        (lambda read: read("absent"), "PATH_NOT_FOUND"),
        (lambda read: read("torn", "parquet"), "FAILED_READ_FILE"),
        (lambda read: read("letters", mode="FAILFAST"), "MALFORMED_RECORD_IN_PARSING"),
        (lambda read: read("swapped", enforceSchema=False), "FAILED_READ_FILE"),
        (lambda read: read("swapped").selectExpr("cast('x' as int)"), "CAST_INVALID_INPUT"),
        (lambda read: FeatureHasher(inputCols=["c"], outputCol="f").transform(read("swapped")), "c"),
    ],
    ids=["absent", "torn", "letters", "swapped", "cast", "no column of a stage"],
)
def test_bad_rows_are_bad_input(read, tmp_path, rows, word):
    with pytest.raises(BadInput, match=f"the rows cannot be used: .*{word}") as caught, reading_rows():
        rows(read).write.parquet(str(tmp_path / "out"))
    assert "\n" not in str(caught.value)


def test_other_errors_stay(spark, read):
    def fails(batches):
        raise ZeroDivisionError

    with pytest.raises(PySparkException, match="ZeroDivisionError"), reading_rows():
        read("swapped").mapInPandas(fails, SCHEMA).collect()
    with pytest.raises(Py4JJavaError, match="NullPointer"), reading_rows():
        spark._jvm.java.util.Objects.requireNonNull(None)
