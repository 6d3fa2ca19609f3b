"""Errors carry a message and a context, also through copies and pickles."""

from __future__ import annotations

import copy

import cloudpickle
import pytest

from sparkdl import errors
from sparkdl.errors import ErrorContext, InvalidInput, SparkdlError

KINDS = [getattr(errors, name) for name in errors.__all__ if name != "ErrorContext"]
PLACE = ErrorContext("train", 3, "node-7", 1, 1200)


@pytest.mark.parametrize(
    ("context", "text"),
    [
        (ErrorContext(), ""),
        (PLACE, "stage train, rank 3, host node-7, attempt 1, step 1200"),
        (ErrorContext(rank=0, attempt=0, step=0), "rank 0, attempt 0, step 0"),
    ],
    ids=str,
)
def test_context_names_the_known_fields(context: ErrorContext, text: str) -> None:
    assert str(context) == text


@pytest.mark.parametrize("kind", KINDS)
def test_error_carries_its_context_through_copies_and_pickles(kind: type[SparkdlError]) -> None:
    error, bare = kind("the disk is full.", context=PLACE, trace="Traceback\n\n"), kind("the disk is full.")
    assert isinstance(error, SparkdlError)
    assert (error.stage, error.rank, error.host, error.attempt, error.step) == ("train", 3, "node-7", 1, 1200)
    assert str(error) == f"the disk is full. [{PLACE}]\n\nTraceback"
    assert str(bare) == bare.message == "the disk is full."
    assert {bare.trace, bare.stage, bare.rank, bare.host, bare.attempt, bare.step} == {None}
    for original in (error, bare):
        for copied in (cloudpickle.loads(cloudpickle.dumps(original)), copy.copy(original), copy.deepcopy(original)):
            assert type(copied) is kind
            for name in ("message", "context", "trace"):
                assert getattr(copied, name) == getattr(original, name)
            assert (str(copied), copied.args) == (str(original), original.args)


def test_all_errors_are_public_and_invalid_input_is_a_value_error() -> None:
    kinds = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert kinds | {"ErrorContext"} == set(errors.__all__)
    assert issubclass(InvalidInput, ValueError)
