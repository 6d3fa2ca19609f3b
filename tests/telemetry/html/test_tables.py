"""How the tables of the page write numbers, and which parts of a URI they leave out."""

from __future__ import annotations

import pytest

from sparkdl.io.redaction import masked
from sparkdl.telemetry.html.tables import page_tables
from tests.telemetry.html.made import run


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.25, "0.2 s"), (59.4, "59.4 s"), (60, "1 min 00 s"), (3599, "59 min 59 s"), (7325, "2 h 02 min")],
)
def test_seconds(seconds, told):
    assert page_tables([run(report={"seconds": seconds})])["figures"]["in all"] == told


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0 B"), (999, "999 B"), (999_600, "1 MB"), (5.2e9, "5.2 GB"), (3.25e15, "3,250.0 TB")]
)
def test_bytes(count, told):
    assert page_tables([run(report={"bytes": count})])["figures"]["exchanged"] == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("s3://KEY:a/b+c@bucket/runs", "s3://bucket/runs"),
        ("s3://bucket/runs?access_key=KEY&secret_key=SECRET", "s3://bucket/runs"),
        ("s3a://KEY:SECRET@bucket/runs?endpoint_override=x and more", "s3a://bucket/runs and more"),
        ("hdfs://user@namenode:8020/runs", "hdfs://namenode:8020/runs"),
        ('{"a": "s3://bucket/x", "to": "me@example.org"}', '{"a": "s3://bucket/x", "to": "me@example.org"}'),
        ("file:///runs/one", "file:///runs/one"),
        ("is it? yes", "is it? yes"),
    ],
)
def test_credentials_are_left_out(text, told):
    assert masked(text) == told
    [row] = page_tables([run(configuration={"runDir": text})])["configuration"].rows
    assert [cell.text for cell in row] == ["runDir", told]
