"""Validation rows of ``validationFraction``: the same in any partitioning, and as with an indicator column."""

from __future__ import annotations

import math
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import SparseVector, Vectors
from pyspark.mllib.util import MLUtils
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType

from sparkdl import InputColumn, InvalidInput, ParallelSGD, TorchClassifier
from sparkdl.io.weights import pack
from sparkdl.ml.run import IDENTITY, Run
from sparkdl.spark.fingerprint import number_hashed, row_hash
from tests.ml import nets, rows

COUNT = 3_000
INPUTS = ["vector", "numbers", "image", "x"]


def estimator(**values):
    specs = [InputColumn("image", "uint8", (2,))]
    return TorchClassifier(model=nets.scores, inputCols=INPUTS, columnSpecs=specs, **values)


def marked(frame, *fractions, **values):
    """The rows with a column for each fraction, and the names of the columns."""
    for fraction in fractions:
        derived = estimator(validationFraction=fraction, **values).derived_columns()
        frame = derived.with_validation(frame).frame
    return frame, frame.columns[-len(fractions) :]


def test_side_of_a_row_depends_on_its_values_alone(spark):
    """Rows have every type that a fit reads, and each is there twice."""
    numbers = spark.range(COUNT).select(
        "id",
        F.array(F.rand(1), F.rand(2)).alias("numbers"),
        F.encode(F.lpad(F.conv("id", 10, 36), 2, "0"), "UTF-8").alias("image"),
        F.when(F.rand(3) < 0.9, F.rand(4).cast("float")).alias("x"),
        (F.col("id") % 3).alias("label"),
    )
    made = numbers.withColumn("vector", array_to_vector("numbers"))
    mixed = made.union(made).cache()
    frame, names = marked(mixed, 0.1, 0.3)
    assert names == ["sparkdl validation", "sparkdl validation'"]  # beside a column of this name
    by_values = dict.fromkeys(range(COUNT))
    for row in frame.collect():
        sides = tuple(row[name] for name in names)
        assert by_values[row["id"]] in (None, sides)  # equal rows have equal sides
        by_values[row["id"]] = sides
    smaller, larger = np.array([*by_values.values()]).T
    assert smaller.mean() == pytest.approx(0.1, abs=0.02)
    assert larger.mean() == pytest.approx(0.3, abs=0.03)
    assert not (smaller & ~larger).any()  # a larger fraction takes no row away
    # Other partitions, order, columns and precision.
    other = mixed.orderBy(F.desc("x")).repartition(7).withColumn("y", F.rand(5))
    frame, names = marked(other.select(*reversed(other.columns)), 0.1, 0.3, precision="fp64", weightCol="y")
    assert {row["id"]: tuple(row[name] for name in names) for row in frame.collect()} == by_values


def test_side_by_id_and_by_equal_vectors(spark):
    sparse = [(index, SparseVector(2, {1: index / 7})) for index in range(100)]
    dense = [(index + 100, Vectors.dense(vector.toArray())) for index, vector in sparse]
    frame = spark.createDataFrame([*sparse, *dense], ["id", "vector"]).withColumn("label", F.col("id") % 1)
    derived = TorchClassifier(inputCols=["vector"], validationFraction=0.5).derived_columns()
    of_each = []
    for made in (frame, MLUtils.convertVectorColumnsFromML(frame, "vector")):
        of_each.append([row[-1] for row in derived.with_validation(made).frame.orderBy("id").collect()])
    sides, old = of_each
    assert sides[:100] == sides[100:] == old[:100] == old[100:]
    assert 30 < sum(sides[:100]) < 70
    derived = TorchClassifier(inputCols=["vector"], validationFraction=0.5, idCol="id").derived_columns()
    number, long = (derived.with_validation(frame.withColumn("id", F.col("id").cast(kind))) for kind in ("int", "long"))
    by_id = [row[-1] for row in number.frame.collect()]
    assert by_id == [row[-1] for row in long.frame.collect()] != sides


TYPES = {
    "x": ["tinyint", "smallint", "int", "float", "double", "decimal(4,0)", "decimal(38,18)"],
    "label": ["int", "double", "decimal(6,2)", "boolean"],
    "many": ["array<int>", "array<float>", "array<double>", "array<decimal(9,2)>"],
    "nested": ["array<array<tinyint>>", "array<array<double>>"],
    "large": ["decimal(20,1)", "decimal(38,4)"],
}


def test_whole_numbers_of_any_type_are_on_one_side(spark):
    """Those of bigint, as in earlier versions."""
    many, large = "array(id, id * 3 % 100)", "if(id = 5, null, 9007199254740993 + id)"
    columns = {"x": "id % 7", "label": "pmod(id, 2)", "many": many, "nested": f"array({many})", "large": large}
    rows = spark.range(-100, 100).selectExpr("id", *(f"{text} AS {name}" for name, text in columns.items()))
    inputs = [name for name in columns if name != "label"]
    derived = TorchClassifier(inputCols=inputs, validationFraction=0.5).derived_columns()

    def sides(frame):
        return [row[-1] for row in derived.with_validation(frame).frame.orderBy("id").collect()]

    hashed = ", ".join(f"'{name}', {name} is null, {name}" for name in sorted(columns))
    expected = [row[0] for row in rows.orderBy("id").selectExpr(f"xxhash64({hashed}) < 0").collect()]
    assert sides(rows) == expected
    for name, kinds in TYPES.items():
        assert [kind for kind in kinds if sides(rows.withColumn(name, F.col(name).cast(kind))) != expected] == []
    assert sides(rows.withColumn("many", array_to_vector(F.col("many").cast("array<double>")))) == expected


def test_other_numbers_are_doubles(spark):
    values = (math.nan, -0.0, None, -(2.0**63), 1e300, 0.1, -math.inf)
    rows = spark.createDataFrame([(value,) for value in values], "x double")
    whole = "if(x in (0, -9223372036854775808), cast(x as bigint), null)"
    expected = F.expr(f"xxhash64('x', x is null, {whole}, if({whole} is null, x, null))")
    assert rows.where(row_hash({"x": number_hashed(F.col("x"), DoubleType())}) != expected).count() == 0


def test_run_of_an_earlier_version_resumes_with_the_same_sides_alone(spark):
    derived = TorchClassifier(inputCols=["x"], validationFraction=0.5).derived_columns()
    rows, earlier = spark.range(100).selectExpr("id + 0.5D AS x", "id AS label"), {"validationFraction": "0.5"}
    assert derived.described_split(rows, earlier) == {}
    integers = rows.withColumn("label", F.col("label").cast("int"))
    described = derived.described_split(integers, None)
    for other in ({"validationFraction": "0.4"}, earlier | described):
        assert derived.described_split(integers, other) == described != {}
    with pytest.raises(InvalidInput, match=r"earlier version .* \d+ rows would change sides. .* another runDir"):
        derived.described_split(integers, earlier)


def held(name: str, fraction: float):
    """The hash of the ids, as the page on training describes it."""
    hashed = F.xxhash64(F.lit("validationFraction"), F.lit(False), F.col(name).cast("bigint"))
    return hashed < F.lit(int(-(2**63) + fraction * 2**64))


def test_fit_equals_one_with_an_indicator_of_the_same_hash(data, caplog):
    caplog.set_level("INFO", "sparkdl.ml.fit_monitor")
    fit = partial(rows.classifier, strategy=ParallelSGD(rounds=2))
    by_fraction = fit(validationFraction=0.25).fit(data.repartition(3))
    by_column = fit(validationIndicatorCol="held").fit(data.withColumn("held", held("row", 0.25)))
    taken = data.where(held("row", 0.25)).count()
    logged = f"validationFraction=0.25: {data.count() - taken} training rows and {taken} validation rows"
    assert [record.message for record in caplog.records if record.name == "sparkdl.ml.fit_monitor"] == [logged]
    assert pack(by_fraction.module()) == pack(by_column.module())
    losses = [[(row["loss"], row["valid_loss"]) for row in model.history] for model in (by_fraction, by_column)]
    assert losses[0] == losses[1]


def test_settings_see_validation_rows():
    validated = rows.classifier(validationFraction=0.25, monitor="valid_loss", minDelta=0.1)
    assert validated.objective().monitor == "valid_loss"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        validated.warn_of_ignored()  # monitor and minDelta decide on the best epoch
    with pytest.raises(InvalidInput, match=r"monitor is 'valid_loss'.* set validationFraction or validationIndicator"):
        rows.classifier(monitor="valid_loss").objective()
    both = rows.classifier(validationFraction=0.25, validationIndicatorCol="valid")
    with pytest.raises(InvalidInput, match=r"validationFraction is 0.25 and validationIndicatorCol is 'valid'; .* one"):
        both.derived_columns()


def test_run_resumes_with_the_same_sides_and_weights_alone(data, tmp_path):
    """Its workers compare the rows, with validation and weights, with those of the checkpoint."""
    fit = partial(rows.classifier, runDir=str(tmp_path), weightCol="weight", optimizer=partial(torch.optim.SGD, lr=0.1))
    first = fit(validationFraction=0.25, classWeights="balanced").fit(data)
    again = fit(validationFraction=0.25, classWeights="balanced", epochs=2).fit(data.repartition(5).orderBy("y"))
    assert [row["loss"] for row in again.history][:1] == [row["loss"] for row in first.history]
    assert again.report["class_weights"] == first.report["class_weights"]
    before = Run(str(tmp_path)).load(IDENTITY)
    assert (before["validationFraction"], before["classWeights"]) == ("0.25", "balanced")
    for values, message in (
        ({"validationFraction": 0.25, "classWeights": [1, 2, 1]}, "classWeights was .*balanced.* and is .*1.0, 2.0"),
        ({"classWeights": "balanced"}, "validationFraction was '0.25' and is 'None'"),
    ):
        with pytest.raises(InvalidInput, match=message):
            fit(**values).fit(data)
