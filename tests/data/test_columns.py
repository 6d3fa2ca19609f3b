"""Which columns a run reads, and what is refused before anything is launched."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sparkdl.data.arrow_types import element_type, is_list
from sparkdl.data.batch import DTYPES
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput

SCHEMA = pa.schema(
    [
        ("a", pa.float64()),
        ("b", pa.list_(pa.float32())),
        ("c", pa.large_list(pa.list_(pa.int16(), 3))),
        ("flag", pa.bool_()),
        ("text", pa.string()),
        ("texts", pa.list_(pa.string())),
    ]
)
NUMBERS = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_()),
)
OTHERS = (
    *(pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.decimal128(10, 2), pa.null(), pa.duration("s")),
    *(pa.struct([("x", pa.float32())]), pa.map_(pa.string(), pa.int32()), pa.dictionary(pa.int32(), pa.string())),
    *(pa.list_view(pa.float32()), pa.time64("us")),
)


def columns(*names: str) -> Columns:
    return Columns(tuple(InputColumn(name) for name in names))


# ---- one column ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [None, *DTYPES])
def test_a_column_takes_every_dtype_that_tensors_have(dtype: str | None) -> None:
    assert InputColumn("x", dtype).dtype == dtype


@pytest.mark.parametrize("dtype", ["float", "float16", "uint16", "int", "torch.float32", ""])
def test_another_dtype_is_refused(dtype: str) -> None:
    with pytest.raises(InvalidInput, match=f"column 'x' has dtype '{dtype}'; expected one of bool, uint8"):
        InputColumn("x", dtype)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ragged": "yes"}, "column 'x' has ragged='yes'; expected 'offsets' or 'padded'"),
        ({"padding": 1}, "column 'x' has padding=1, which only ragged='padded' has"),
        ({"padding": 1, "ragged": "offsets"}, "which only ragged='padded' has"),
        ({"padding": 0.5, "ragged": "padded", "dtype": "int64"}, "padding=0.5; expected a value of int64"),
        ({"decode": "function"}, r"decode='function' and ragged=None; expected a function decode\(bytes\)"),
        ({"decode": len, "ragged": "padded"}, "expected a function"),
    ],
    ids=str,
)
def test_a_description_that_contradicts_itself_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        InputColumn("x", **given)


def test_a_shape_from_json_is_a_shape() -> None:
    assert InputColumn("x", "uint8", [2, 3]) == InputColumn("x", "uint8", (2, 3))  # type: ignore[arg-type]
    assert len({InputColumn("x", "uint8", [2, 3])}) == 1  # type: ignore[arg-type]


# ---- of --------------------------------------------------------------------------------------------------------------


def test_names_become_inputs() -> None:
    assert Columns.of(["b", "a"], ["a", "b", "c"]) == columns("b", "a")


def test_nothing_given_takes_every_column() -> None:
    assert Columns.of(None, ["a", "b"]) == columns("a", "b")


def test_columns_stay_what_they_are() -> None:
    given = Columns((InputColumn("a"),), target=InputColumn("b", "int64"))
    assert Columns.of(given, ["z"]) is given


def test_one_string_is_not_a_list_of_letters() -> None:
    with pytest.raises(InvalidInput, match="columns is the string 'ab'; expected a list"):
        Columns.of("ab", ["a", "b", "ab"])


# ---- the order -------------------------------------------------------------------------------------------------------


def test_columns_come_in_the_order_of_their_fields() -> None:
    given = Columns(
        (InputColumn("x"), InputColumn("y")),
        row_id=InputColumn("id"),
        validation=InputColumn("v"),
        weight=InputColumn("w"),
        target=InputColumn("t"),
    )
    assert [column.name for column in given] == ["x", "y", "t", "w", "v", "id"]


def test_a_column_used_twice_comes_once() -> None:
    given = Columns((InputColumn("x"), InputColumn("x")), target=InputColumn("x"), row_id=InputColumn("id"))
    assert [column.name for column in given] == ["x", "id"]


def test_several_labels_are_numbers_of_the_runs_dtype() -> None:
    several = Columns((InputColumn("x"),), (InputColumn("a"), InputColumn("b", "float64")), floating="float32")
    assert several.targets == (InputColumn("a", "float32", ()), InputColumn("b", "float64", ()))
    assert [column.name for column in several] == ["x", "a", "b"]
    assert Columns((InputColumn("x"),), InputColumn("y")).targets == (InputColumn("y"),)
    assert columns("x").targets == ()


def test_two_uses_may_not_contradict_each_other() -> None:
    for one, other in (
        ({"dtype": "int64"}, {"dtype": "float32"}),
        ({"shape": (1,)}, {"shape": ()}),
        ({"ragged": "padded"}, {"ragged": "offsets"}),
        ({"decode": len}, {"decode": abs}),
    ):
        with pytest.raises(InvalidInput, match=f"column 'x' is used twice, with {next(iter(one))}=.* and with"):
            list(Columns((InputColumn("x", **one), InputColumn("x", **other))))  # type: ignore[arg-type]
    both = Columns((InputColumn("x"), InputColumn("x", "int64", (), "padded", 7)))
    assert list(both) == [InputColumn("x", "int64", (), "padded", 7)]


# ---- check -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
def test_numbers_and_arrays_of_them_can_become_tensors(kind: pa.DataType) -> None:
    for nested in (kind, pa.list_(kind), pa.large_list(kind), pa.list_(kind, 4), pa.list_(pa.list_(kind, 2), 3)):
        columns("x").check(pa.schema([("x", nested)]))
        assert element_type(nested) == kind


@pytest.mark.parametrize("kind", OTHERS, ids=str)
def test_everything_else_is_refused(kind: pa.DataType) -> None:
    for nested in (kind, pa.list_(kind), pa.list_(pa.large_list(kind), 2)):
        with pytest.raises(
            InvalidInput, match=r"column 'x' has type .*; expected numbers, booleans, or arrays of them"
        ):
            columns("x").check(pa.schema([("x", nested)]))


def test_a_missing_column_is_named_beside_those_there_are() -> None:
    with pytest.raises(InvalidInput, match="there is no column 'z'; the data has 'a', 'b', 'c', 'flag', 'text'"):
        columns("a", "z").check(SCHEMA)


def test_a_thousand_names_fit_a_screen() -> None:
    with pytest.raises(InvalidInput, match="'c19' and 980 more") as caught:
        columns("z").check(pa.schema([(f"c{index}", pa.int8()) for index in range(1000)]))
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (pa.timestamp("us"), "seconds since 1970"),
        (pa.list_(pa.date32()), "days since a date"),
        (pa.string(), "Turn strings into numbers"),
        (pa.struct([("x", pa.float32())]), "Select its fields"),
        (pa.binary(), "Say what its bytes are"),
        (pa.decimal128(10, 2), "Cast it to a number"),
    ],
    ids=str,
)
def test_what_to_do_with_another_type(kind: pa.DataType, advice: str) -> None:
    with pytest.raises(InvalidInput, match=advice):
        columns("x").check(pa.schema([("x", kind)]))


def test_a_column_that_nobody_reads_may_be_anything() -> None:
    Columns((InputColumn("a"), InputColumn("c")), target=InputColumn("b"), validation=InputColumn("flag")).check(SCHEMA)


@pytest.mark.parametrize("place", ["target", "weight", "validation", "row_id"])
def test_every_kind_of_column_is_checked(place: str) -> None:
    for name in ("nowhere", "text", "texts"):
        with pytest.raises(InvalidInput, match=f"column '{name}'"):
            Columns((InputColumn("a"),), **{place: InputColumn(name)}).check(SCHEMA)


def test_lists_are_lists_of_any_make() -> None:
    assert all(is_list(kind) for kind in (pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.list_(pa.int8(), 2)))
    assert not any(is_list(kind) for kind in (pa.int8(), pa.string(), pa.binary(), pa.map_(pa.int8(), pa.int8())))
