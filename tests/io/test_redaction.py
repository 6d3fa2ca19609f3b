"""What may be shown of a path or URI."""

from __future__ import annotations

import pytest

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.redaction import public


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("/a/b", "/a/b"),
        ("a@b?c", "a@b?c"),
        ("file:///a/b", "file:///a/b"),
        ("hdfs://host:9000/a", "hdfs://host:9000/a"),
        ("s3://key:secret@bucket/a?endpoint_override=x&secret=y", "s3://bucket/a"),
        ("s3://key:p@ss@bucket/a", "s3://bucket/a"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("s3://bucket", "s3://bucket"),
    ],
)
def test_credentials_and_options_are_left_out(uri: str, shown: str) -> None:
    assert public(uri) == shown


def test_an_error_does_not_quote_them() -> None:
    with pytest.raises(InvalidInput) as caught:
        files.locate("s4://key:secret@bucket/a")
    assert "s4://bucket/a" in str(caught.value)
    assert "secret" not in str(caught.value)
