"""Feature stages without Spark: values that they reject, columns of pandas, folders, and imports."""

import json
import math
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl.errors import InvalidInput
from sparkdl.serving.features.assembling import FeatureHasher, VectorAssembler
from sparkdl.serving.features.column import Column, texts
from sparkdl.serving.features.conversion import arrow_type, cast_exactly, read_array
from sparkdl.serving.features.labels import IndexToString, OneHotEncoderModel, StringIndexerModel
from sparkdl.serving.features.numbers import Bucketizer
from sparkdl.serving.features.reader import read_pipeline
from sparkdl.serving.features.scaling import MinMaxScalerModel
from tests.sessions import ROOT

NAN = math.nan
PLACE = ("u", ("x",), ("y",))


def read(values, kind=None):
    array = read_array(values, "x", nan_is_null=True)
    return Column.of(array if kind is None else cast_exactly(array, arrow_type(kind), "x"))


@pytest.mark.parametrize(
    ("stage", "values", "message"),
    [
        (StringIndexerModel(*PLACE, labels=(("a",),)), ["a", "b", None], "'x' has null and 'b', which training did"),
        (StringIndexerModel(*PLACE, labels=(("a",),)), [[1], [2]], "holds ndarray; expected strings or numbers"),
        (IndexToString(*PLACE, labels=("a",)), [0.0, 1.0], r"IndexToString u: the column 'x' has 1\.0; expected an"),
        (OneHotEncoderModel(*PLACE, sizes=(2,)), [0.0, 2.0, -1.0], r"has 2\.0, -1\.0; expected an index of one of"),
        (Bucketizer(*PLACE, splits=((0.0, 1.0, 2.0),)), [0.5, 3.0], r"has 3\.0; expected values from 0\.0 to 2\.0"),
        (VectorAssembler(*PLACE), [1.0, None, NAN], "'x' has 2 rows with null or NaN; fill them, or train with handle"),
        (VectorAssembler(*PLACE), ["a"], "VectorAssembler u cannot read the column 'x': it holds str; expected arrays"),
        (VectorAssembler(*PLACE), [[1.0], [1.0, 2.0]], "it holds ndarray; expected arrays of numbers of one length"),
        (MinMaxScalerModel(*PLACE, low=np.zeros(3)), [[1.0, 2.0]], "got vectors of 2 numbers in 'x'; expected 3"),
        (FeatureHasher(*PLACE, width=4), [[1], [2]], "FeatureHasher u cannot read the column 'x': it holds ndarray"),
        (FeatureHasher("u", ("z",), ("y",)), ["a"], "FeatureHasher u needs the column 'z'; there are 'x'"),
    ],
)
def test_values_that_a_stage_rejects(stage, values, message):
    with pytest.raises(InvalidInput, match=message):
        stage.transform({"x": read(values)})


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ([1.5], "int", "column 'x' has type double: Float value 1.5"),
        ([300], "tinyint", "Integer value 300 not in range"),
        (pd.Series([2.0**53, NAN]), "bigint", "has numbers above 9.0072e"),
        (np.array([2**63], np.uint64), "bigint", "not in range"),
        ([2**53 + 1], "double", "Integer value 9007199254740993 not in range"),
        ([1e300], "float", "has numbers above 3.40282e"),
        ([0.125], "decimal(9,2)", "Rescaling Decimal value would cause data loss; expected values of decimal128"),
        ([True], "int", "has type bool: this is another kind of value; expected values of int32"),
        ([1], "boolean", "has type int64: this is another kind of value; expected values of bool"),
        ([5], "string", "has type int64: this is another kind of value; expected values of string"),
        ([1.0], "vector", "this is another kind of value; expected values of list<item: double>"),
        ([[1.0, None]], "vector", "its arrays have nulls"),
        ([1, "a"], "int", "column 'x' cannot be read: Could not convert 'a'"),
        (np.array(1.0), "double", "column 'x' cannot be read"),
        ([1], "date", "the type of a column is 'date'; expected a type of Spark that a stage reads"),
    ],
)
def test_values_that_a_type_does_not_hold(values, kind, message):
    with pytest.raises(InvalidInput, match=re.escape(message)):
        read(values, kind)


def test_numbers_are_written_as_by_java():
    values = [0.0, -0.0, 1.0, 0.001, 1e-4, 9999999.0, 1e7, -1.25e-10, 1.7976931348623157e308, NAN, math.inf]
    assert texts(np.array(values)) == [
        *("0.0", "-0.0", "1.0", "0.001", "1.0E-4", "9999999.0", "1.0E7", "-1.25E-10", "1.7976931348623157E308"),
        *("NaN", "Infinity"),
    ]
    assert texts(np.array([0.1, 1e10], dtype=np.float32)) == ["0.1", "1.0E10"]
    assert texts(np.array([True])) + texts(np.array([1 << 62])) == ["true", str(1 << 62)]


def save(folder, kind, params, data=None, **more):
    """A stage as Spark writes it."""
    metadata = {"class": kind, "uid": "u", "paramMap": params, "defaultParamMap": {}} | more
    (folder / "metadata").mkdir(parents=True)
    (folder / "metadata/part-00000-x-c000.txt").write_text(json.dumps(metadata))
    if data is not None:
        (folder / "data").mkdir()
        pq.write_table(pa.Table.from_pylist(data), folder / "data/part-00000.parquet")


def pipeline(folder, *stages):
    save(folder, "org.apache.spark.ml.PipelineModel", {"stageUids": ["u"] * len(stages)})
    for at, (kind, params, *data) in enumerate(stages):
        save(folder / f"stages/{at}_u", f"org.apache.spark.ml.feature.{kind}", params, *data)
    return folder.as_uri()


INDEXED = {"inputCol": "label", "outputCol": "y", "handleInvalid": "error"}
INDEXER = ("StringIndexerModel", INDEXED, [{"labelsArray": [["a"]]}])
ASSEMBLER = ("VectorAssembler", {"inputCols": ["a", "b"], "outputCol": "v", "handleInvalid": "error"})


def test_only_stages_on_which_predictions_depend_are_needed(tmp_path):
    needed = read_pipeline(pipeline(tmp_path / "p", INDEXER, ASSEMBLER), {}).needed(["v"])
    assert needed.inputs == ["a", "b"]
    made = needed.transform({name: read([1, 2]) for name in "ab"})
    assert made["v"].values.tolist() == [[1.0, 1.0], [2.0, 2.0]]


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([("PCAModel", {})], "the stage PCAModel cannot be served without Spark; expected Binarizer, Bucketizer, "),
        ([(*ASSEMBLER[:1], ASSEMBLER[1] | {"handleInvalid": "skip"})], "handleInvalid of VectorAssembler is 'skip'"),
        ([("IndexToString", {"inputCol": "p", "outputCol": "q"})], "has no labels, and no StringIndexer adds"),
        ([INDEXER[:2]], "holds no saved stage of pyspark.ml: data/part-. is missing"),
        ([(*INDEXER[:2], [{"labels": []}])], "is damaged: KeyError: 'labelsArray'"),
        ([(*INDEXER[:2], [{"labelsArray": []}] * 2)], "is damaged: data: too many values"),
    ],
)
def test_folders_that_cannot_be_read(tmp_path, stages, message):
    with pytest.raises(InvalidInput, match=message):
        read_pipeline(pipeline(tmp_path / "p", *stages), {})


def test_other_folders_are_no_pipelines(tmp_path):
    save(tmp_path / "model", "sparkdl.ml.model.TorchModel", {})
    with pytest.raises(InvalidInput, match=r"holds a sparkdl\.ml\.model\.TorchModel; expected a saved PipelineModel"):
        read_pipeline(str(tmp_path / "model"), {})
    with pytest.raises(InvalidInput, match=r"holds no saved stage of pyspark\.ml: metadata/part-. is missing"):
        read_pipeline(str(tmp_path / "nowhere"), {})


def test_features_need_neither_pyspark_nor_torch():
    script = "import sys; sys.modules.update(pyspark=None, torch=None); import sparkdl.serving.features.reader"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=240)
