"""Files written whole, by path and by URI, and what errors and logs show of a URI."""

from __future__ import annotations

import os

import pytest
from pyarrow import fs

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from tests.data.spooled import largest_file

NAMES = {"path": str, "file://": "file://{}".format, "file:": "file:{}".format, "relative": os.path.relpath} | {
    "file://localhost": "file://localhost{}".format
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_written_bytes_come_back_and_replace_the_old(name, tmp_path):
    path = tmp_path / "deep" / "er" / "file.bin"
    assert not files.exists(name(path))
    with pytest.raises(FileNotFoundError):
        files.read(name(path))
    assert os.listdir(tmp_path) == []
    for data in (bytes(3_000_000), b"", b"\0\r\n"):
        files.write(name(path), data)
        assert files.exists(name(path))
        assert files.exists(name(path.parent))
        assert files.read(name(path)) == path.read_bytes() == data
        assert os.listdir(path.parent) == ["file.bin"]
    assert files.locate(name(path)) == (fs.LocalFileSystem(), str(path))
    assert files.local_path(name(path)) == str(path)


@pytest.mark.parametrize("odd", ["with space", "100%", "a%20b", "a#b", "a?b=c", "ünï", "x=1&y", "[a]", "a:b"])
def test_odd_names_are_taken_literally_as_in_spark(odd, tmp_path):
    for name in ("path", "file://", "file:"):
        path = tmp_path / name.strip(":/") / odd / "file"
        files.write(NAMES[name](path), b"data")
        assert path.read_bytes() == b"data"
        assert files.local_path(NAMES[name](path)) == str(path)


def test_failed_write_keeps_everything_as_it_was(tmp_path):
    path, inside = tmp_path / "file", tmp_path / "folder" / "inside"
    files.write(str(path), b"old")
    files.write(str(inside), b"")
    for target in (inside.parent, path / "below"):
        with pytest.raises(OSError, match=target.parts[-2] if target.name == "below" else target.name):
            files.write(str(target), b"data")
    with largest_file(10_000), pytest.raises(OSError, match="File too large"):
        files.write(str(path), bytes(20_000))
    assert path.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    assert os.listdir(inside.parent) == ["inside"]


def test_hadoop_s3_is_s3():
    assert files.locate("s3a://k:se%2Fcret@bucket/a b#[%20]?region=x")[1] == "bucket/a b#[%20]"  # literal, as in Spark
    for scheme in ("s3", "s3a", "s3n"):
        uri = f"{scheme}://key:secret@bucket/deep/file?region=eu-west-1"
        system, path = files.locate(uri)
        assert (system.type_name, path, files.local_path(uri)) == ("s3", "bucket/deep/file", None)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        *[(uri, f"'{uri}' cannot be opened: ") for uri in ("dbfs:/x/y", "nonsense://host/x", "http://host/file")],
        ("s4://key:secret@bucket/a", "'s4://bucket/a' cannot be opened: "),
        ("file://tmp/run", "names the host 'tmp'; expected file:///path, with three slashes"),
        ("file://host/tmp/run", "names the host 'host'; expected file:///path, with three slashes"),
    ],
)
def test_unknown_filesystems_raise_without_credentials(uri, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        files.locate(uri)
    assert "secret" not in str(caught.value)


def test_directory_replaces_another(tmp_path):
    for name in ("old", "new"):
        files.write(f"{tmp_path}/{name}/inner/file", name.encode())
    files.replace(f"{tmp_path}/new", (tmp_path / "old").as_uri())
    assert (tmp_path / "old/inner/file").read_text() == "new"
    with pytest.raises(OSError, match="gone"):
        files.replace(f"{tmp_path}/gone", f"{tmp_path}/old")
    assert (tmp_path / "old/inner/file").read_text() == "new"
    files.replace(str(tmp_path / "old"), f"{tmp_path}/fresh")
    assert [path.name for path in tmp_path.iterdir()] == ["fresh"]
    for name in ("fresh/inner/file", "fresh", "missing"):
        files.delete(f"{tmp_path}/{name}")
    assert list(tmp_path.iterdir()) == []


def test_names_are_joined_before_the_options_of_a_uri():
    for folder, path in {
        "/runs": "/runs/x/y",
        "/runs/": "/runs/x/y",
        "/": "/x/y",
        "/a?b": "/a?b/x/y",
        "file:///a?b": "file:///a?b/x/y",
        "s3://key:secret@bucket/runs": "s3://key:secret@bucket/runs/x/y",
        "s3a://bucket/runs/?region=a&scheme=http": "s3a://bucket/runs/x/y?region=a&scheme=http",
    }.items():
        assert files.join(folder, "x/y") == path
