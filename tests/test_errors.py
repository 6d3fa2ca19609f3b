"""An error says what happened and where, and says the same after it has travelled."""

from __future__ import annotations

import copy
import itertools

import cloudpickle
import pytest

from sparkdl import errors
from sparkdl.errors import ErrorContext, InvalidInput, SparkdlError, WorkerFailed

KINDS = [getattr(errors, name) for name in errors.__all__ if name != "ErrorContext"]
PLACE = ErrorContext("train", 3, "node-7", 1, 1200)
each_kind = pytest.mark.parametrize("kind", KINDS)


# ---- places ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (ErrorContext(), ""),
        (PLACE, "stage train, rank 3, host node-7, attempt 1, step 1200"),
        (ErrorContext(rank=0, attempt=0, step=0), "rank 0, attempt 0, step 0"),
        (ErrorContext(host="::1"), "host ::1"),
    ],
    ids=str,
)
def test_a_place_tells_what_is_known(place: ErrorContext, text: str) -> None:
    assert str(place) == text


# ---- errors ----------------------------------------------------------------------------------------------------------


@each_kind
def test_every_error_carries_its_place(kind: type[SparkdlError]) -> None:
    error = kind("the disk is full.", place=PLACE)
    assert isinstance(error, SparkdlError)
    assert (error.stage, error.rank, error.host, error.attempt, error.step) == ("train", 3, "node-7", 1, 1200)
    assert str(error) == f"the disk is full. [{PLACE}]"


@each_kind
def test_an_error_without_a_place_is_its_message(kind: type[SparkdlError]) -> None:
    error = kind("the disk is full.")
    assert str(error) == error.message == "the disk is full."
    assert error.trace is None
    assert {error.stage, error.rank, error.host, error.attempt, error.step} == {None}


def test_the_trace_comes_last() -> None:
    error = WorkerFailed("KeyError: 'x'", place=ErrorContext(rank=1), trace="Traceback ...\nKeyError: 'x'\n\n")
    assert str(error) == "KeyError: 'x' [rank 1]\n\nTraceback ...\nKeyError: 'x'"


@each_kind
def test_an_error_survives_its_travels(kind: type[SparkdlError]) -> None:
    for error, travel in itertools.product(
        (kind("what", place=PLACE, trace="Traceback"), kind("what")),
        (lambda error: cloudpickle.loads(cloudpickle.dumps(error)), copy.copy, copy.deepcopy),
    ):
        found = travel(error)
        assert type(found) is kind
        assert (found.message, found.place, found.trace, str(found)) == (
            error.message,
            error.place,
            error.trace,
            str(error),
        )
        assert found.args == error.args


def test_invalid_input_is_a_value_error_too() -> None:
    with pytest.raises(ValueError, match="numWorkers is 0"):
        raise InvalidInput("numWorkers is 0; expected at least 1.")


def test_every_error_is_public() -> None:
    made = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert made | {"ErrorContext"} == set(errors.__all__)
