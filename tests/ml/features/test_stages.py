"""Feature stages without Spark: values that they reject, columns of pandas, folders, and imports."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl.errors import InvalidInput
from sparkdl.ml.features.assembling import VectorAssembler
from sparkdl.ml.features.column import Column
from sparkdl.ml.features.hashing import FeatureHasher
from sparkdl.ml.features.java_text import texts
from sparkdl.ml.features.labels import IndexToString, OneHotEncoderModel, StringIndexerModel
from sparkdl.ml.features.murmur3 import bucket
from sparkdl.ml.features.numbers import Bucketizer
from sparkdl.ml.features.reader import read_pipeline
from sparkdl.ml.features.scaling import MinMaxScalerModel
from tests.sessions import ROOT

NAN = math.nan
PLACE = ("u", ("x",), ("y",))


@pytest.mark.parametrize(
    ("stage", "values", "message"),
    [
        (
            StringIndexerModel(*PLACE, labels=(("a",),)),
            ["a", "b", None],
            r"'x' has null and 'b', which training did not",
        ),
        (StringIndexerModel(*PLACE, labels=(("a",),)), [[1], [2]], "holds list; expected strings or numbers"),
        (
            IndexToString(*PLACE, labels=("a",)),
            [0.0, 1.0],
            r"IndexToString u: the column 'x' has 1\.0; expected an index",
        ),
        (
            OneHotEncoderModel(*PLACE, sizes=(2,)),
            [0.0, 2.0, -1.0],
            r"has 2\.0, -1\.0; expected an index of one of the 2",
        ),
        (Bucketizer(*PLACE, splits=((0.0, 1.0, 2.0),)), [0.5, 3.0], r"has 3\.0; expected values from 0\.0 to 2\.0"),
        (VectorAssembler(*PLACE), [1.0, None, NAN], "'x' has 2 rows with null or NaN; fill them, or train with handle"),
        (VectorAssembler(*PLACE), ["a"], "VectorAssembler u cannot read the column 'x': it holds str; expected arrays"),
        (VectorAssembler(*PLACE), [[1.0], [1.0, 2.0]], "it holds list; expected arrays of numbers of one length"),
        (
            MinMaxScalerModel(*PLACE, low=np.zeros(3), high=np.ones(3)),
            [[1.0, 2.0]],
            "got vectors of 2 numbers in 'x'; expected 3",
        ),
        (FeatureHasher(*PLACE, features=4), [[1], [2]], "FeatureHasher u cannot read the column 'x': it holds list"),
        (FeatureHasher(*PLACE, features=4), [True, "a"], "it holds bool and str; expected strings or numbers"),
        (FeatureHasher("u", ("z",), ("y",)), ["a"], "FeatureHasher u needs the column 'z'; there are 'x'"),
    ],
)
def test_values_that_a_stage_rejects(stage, values, message):
    with pytest.raises(InvalidInput, match=message):
        stage.transform({"x": Column.of(values, "x")})


def test_bucketizer_keeps_nan_in_a_bucket_of_its_own():
    kept = Bucketizer(*PLACE, splits=((0.0, 1.0, 2.0),), keep=True)
    column = Column.full(np.array([0.0, 1.0, 2.0, NAN]))
    assert kept.transform({"x": column})["y"].items() == [0.0, 1.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("values", "expected", "dtype"),
    [
        (pd.Series([1.5, NAN]), [1.5, None], "float64"),
        (pd.Series([1, 2], dtype="int32"), [1, 2], "int32"),
        (pd.Series([1, None], dtype="Int32"), [1, None], "int32"),
        (pd.Series([0.5, None], dtype="Float32"), [0.5, None], "float32"),
        (pd.Series([True, None], dtype=object), [True, None], "bool"),
        (pd.Series([True, None], dtype="boolean"), [True, None], "bool"),
        (pd.Series([2, None, 0.5], dtype=object), [2.0, None, 0.5], "float64"),
        (pd.Series(["a", None], dtype="string"), ["a", None], "object"),
        (pd.Series(["a", "b"], dtype="category"), ["a", "b"], "object"),
        ([None, None], [None, None], "float64"),
        ([[1, 2], None], [[1, 2], None], "object"),
    ],
)
def test_columns_of_pandas(values, expected, dtype):
    column = Column.of(values, "x")
    assert (column.items(), str(column.values.dtype)) == (expected, dtype)


def test_column_of_several_types_is_rejected():
    with pytest.raises(InvalidInput, match="column 'x' has numbers and other values; expected one type"):
        Column.of([1, "a"], "x")


def test_hash_is_that_of_pyspark_s_documentation():
    places = [bucket(text, 1 << 18) for text in ("real", "bool=true", "stringNum=1", "string=foo")]
    assert places == [174475, 247670, 262126, 257907]


def test_numbers_are_written_as_by_java():
    values = [0.0, -0.0, 1.0, 0.001, 1e-4, 9999999.0, 1e7, -1.25e-10, 1.7976931348623157e308, NAN, math.inf]
    assert texts(np.array(values)) == [
        *("0.0", "-0.0", "1.0", "0.001", "1.0E-4", "9999999.0", "1.0E7", "-1.25E-10", "1.7976931348623157E308"),
        *("NaN", "Infinity"),
    ]
    assert texts(np.array([0.1, 1e10], dtype=np.float32)) == ["0.1", "1.0E10"]
    assert texts(np.array([True])) + texts(np.array([1 << 62])) == ["true", str(1 << 62)]


# ---- folders -----------------------------------------------------------------------------------------------------


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


INDEXER = (
    "StringIndexerModel",
    {"inputCol": "label", "outputCol": "y", "handleInvalid": "error"},
    [{"labelsArray": [["a"]]}],
)
ASSEMBLER = ("VectorAssembler", {"inputCols": ["a", "b"], "outputCol": "v", "handleInvalid": "error"})


def test_only_stages_on_which_predictions_depend_are_needed(tmp_path):
    needed = read_pipeline(pipeline(tmp_path / "p", INDEXER, ASSEMBLER), {}).needed(["v"])
    assert needed.inputs == ["a", "b"]
    made = needed.transform({name: Column.of([1, 2], name) for name in "ab"})
    assert made["v"].values.tolist() == [[1.0, 1.0], [2.0, 2.0]]


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([("PCAModel", {})], "the stage PCAModel cannot be served without Spark; expected Binarizer, Bucketizer, "),
        (
            [(*ASSEMBLER[:1], ASSEMBLER[1] | {"handleInvalid": "skip"})],
            "handleInvalid of VectorAssembler is 'skip', which",
        ),
        (
            [("IndexToString", {"inputCol": "p", "outputCol": "q"})],
            "has no labels, and no StringIndexer adds its column 'p'",
        ),
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
    script = "import sys; sys.modules.update(pyspark=None, torch=None); import sparkdl.ml.features.reader"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=60)
