"""Hashed columns without Spark; ``tests/ml/test_hashed_columns.py`` compares them with Spark."""

import datetime

import numpy as np
import pyarrow as pa
import pytest

from sparkdl import InvalidInput
from sparkdl.cluster.inline import InlineCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.hashed_columns import hashed_ids
from sparkdl.data.murmur3 import SEED, hash_numbers, number_like, sql_hash
from tests.contracts import work


def test_hash_of_strings_is_that_of_sql():
    """As Spark computes ``hash('')`` and so on."""
    expected = {"": 142593372, "a": 1485273170, "Spark": 228093765}
    for text, value in expected.items():
        assert sql_hash(text.encode(), 42) == value % (1 << 32), text


def test_number_has_the_hash_of_the_text():
    for text in ("", "a", "clicked", "Straße", "x" * 1000, *map(str, range(1000))):
        number = np.array([number_like(text)], np.int32)
        assert hash_numbers(number, SEED)[0] == sql_hash(text.encode(), SEED), text


def test_columns_of_one_hash_as_have_the_same_ids():
    values = pa.array(["x", "y", None])
    one, two = InputColumn("clicked", hash=1000, hash_as="item"), InputColumn("shown", hash=1000, hash_as="item")
    assert hashed_ids(values, one) == hashed_ids(values, two)
    assert hashed_ids(values, one) != hashed_ids(values, InputColumn("shown", hash=1000))


def test_integers_of_any_type_and_nulls_of_pandas_have_the_same_ids():
    column = InputColumn("n", hash=10**6)
    expected = hashed_ids(pa.array([3, -7, None], pa.int64()), column)
    for kind in (pa.int8(), pa.int16(), pa.int32()):
        assert hashed_ids(pa.array([3, -7, None], kind), column) == expected
    assert hashed_ids(pa.array([3.0, -7.0, np.nan]), column) == expected
    assert hashed_ids(pa.array([None, None]), column) == hashed_ids(pa.array([None, None], pa.int64()), column)
    with pytest.raises(InvalidInput, match="values of double; expected strings, whole numbers"):
        hashed_ids(pa.array([0.5]), column)


def test_lists_keep_their_lengths():
    column = InputColumn("tags", ragged="offsets", hash=50)
    lists = hashed_ids(pa.array([["a", "b"], [], None, [None]]), column)
    alone = hashed_ids(pa.array(["a", "b", None]), column).to_pylist()
    assert lists.to_pylist() == [alone[:2], [], alone[2:], alone[2:]]
    fixed = hashed_ids(pa.array([["a"], None], pa.list_(pa.string(), 1)), InputColumn("tags", hash=50))
    assert fixed.to_pylist() == [alone[:1], None]


def test_a_gang_without_spark_gets_ids():
    data = pa.table({"day": [datetime.date(2020, 1, 2), None], "word": ["x", "y"], "id": [1, 2]})
    columns = Columns((InputColumn("day", hash=9), InputColumn("word", hash=9)), row_id=InputColumn("id"))
    (shard,) = InlineCluster().gang(work.rows, data, columns)
    for column in columns.inputs:
        expected = hashed_ids(data[column.name].combine_chunks(), column).to_pylist()
        assert shard["columns"][column.name].tolist() == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hash": 0}, "hash is 0"),
        ({"hash_as": "x"}, "expected hash, the number of ids"),
        ({"hash": 5, "dtype": "float32"}, "expected no decode, and no other dtype"),
    ],
)
def test_fields_that_contradict_raise(fields, message):
    with pytest.raises(InvalidInput, match=message):
        InputColumn("n", **fields)


def test_other_types_and_uses_raise():
    schema = pa.schema([("n", pa.float64()), ("m", pa.int64())])
    with pytest.raises(InvalidInput, match="expected strings, whole numbers, booleans, dates, or arrays of them"):
        Columns((InputColumn("n", hash=5),)).check(schema)
    with pytest.raises(InvalidInput, match="'m' has hash, and is no input alone"):
        Columns((InputColumn("m", hash=5),), target=InputColumn("m")).check(schema)
