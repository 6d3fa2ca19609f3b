"""Files written whole, by path and by URI."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import fs

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from tests.data.spooled import largest_file

NAMES: list[Callable[[Path], str]] = [
    str,
    lambda path: f"file://{path}",
    lambda path: f"file:{path}",
    lambda path: f"file://localhost{path}",
    os.path.relpath,
]
each_name = pytest.mark.parametrize("name", NAMES, ids=["path", "file://", "file:", "file://localhost", "relative"])


@each_name
@pytest.mark.parametrize("data", [b"", b"\0\r\n", bytes(3_000_000)], ids=len)
def test_bytes_come_back(name: Callable[[Path], str], data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "file.bin"
    assert not files.exists(name(path))
    files.write(name(path), data)
    assert files.exists(name(path))
    assert files.exists(name(path.parent))
    assert files.read(name(path)) == path.read_bytes() == data


@each_name
def test_a_file_is_replaced_and_nothing_is_left_beside_it(name: Callable[[Path], str], tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"a" * 1000, b"b"):
        files.write(name(path), data)
        assert path.read_bytes() == data
        assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("odd", ["with space", "100%", "a%20b", "a#b", "a?b=c", "ünï", "x=1&y", "[a]", "a:b"])
def test_odd_names_are_taken_as_they_are(odd: str, tmp_path: Path) -> None:
    """Spark does so too: a model's metadata, which Spark writes, lies in the same directory as its weights."""
    for number, name in enumerate(NAMES[:3]):
        path = tmp_path / str(number) / odd / "file"
        files.write(name(path), b"data")
        assert path.read_bytes() == b"data"
        assert files.local_path(name(path)) == str(path)
        assert os.listdir(tmp_path / str(number)) == [odd]


def test_readers_see_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path, done = tmp_path / "file", threading.Event()
    contents = [bytes([value]) * 300_000 for value in range(2)]
    files.write(str(path), contents[0])
    seen: set[bytes] = set()

    def watch() -> None:
        while not done.is_set():
            seen.add(path.read_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for turn in range(40):
        files.write(str(path), contents[turn % 2])
    done.set()
    watcher.join()
    assert seen <= set(contents)


def test_a_write_that_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inside").touch()
    with pytest.raises(OSError, match="folder"):
        files.write(str(tmp_path / "folder"), b"data")
    assert os.listdir(tmp_path) == ["folder"]
    assert os.listdir(tmp_path / "folder") == ["inside"]


def test_a_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write(str(path), b"old")
    with largest_file(10_000), pytest.raises(OSError, match="File too large"):
        files.write(str(path), bytes(20_000))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_in_the_way_of_a_directory_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    with pytest.raises(OSError, match="file"):
        files.write(str(tmp_path / "file" / "below"), b"data")
    assert (tmp_path / "file").read_bytes() == b"kept"


@each_name
def test_a_missing_file(name: Callable[[Path], str], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.read(name(tmp_path / "nowhere"))
    assert not files.exists(name(tmp_path / "nowhere"))
    assert os.listdir(tmp_path) == []


# ---- which filesystem ------------------------------------------------------------------------------------------------


@each_name
def test_local_paths_are_local(name: Callable[[Path], str], tmp_path: Path) -> None:
    system, path = files.locate(name(tmp_path / "x"))
    assert isinstance(system, fs.LocalFileSystem)
    assert path == str(tmp_path / "x") == files.local_path(name(tmp_path / "x"))


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_hadoop_s3_is_s3(scheme: str) -> None:
    uri = f"{scheme}://key:secret@bucket/deep/file?region=eu-west-1"
    system, path = files.locate(uri)
    assert isinstance(system, fs.S3FileSystem)
    assert path == "bucket/deep/file"
    assert files.local_path(uri) is None


@pytest.mark.parametrize("uri", ["dbfs:/x/y", "nonsense://host/x", "http://host/file"])
def test_another_scheme_is_refused_by_name(uri: str) -> None:
    with pytest.raises(InvalidInput, match=f"'{uri}' cannot be opened: "):
        files.locate(uri)


@pytest.mark.parametrize("uri", ["file://tmp/run", "file://host/tmp/run"])
def test_a_file_on_a_host_is_refused(uri: str) -> None:
    with pytest.raises(InvalidInput, match=r"names the host '\w+'; expected file:///path, with three slashes"):
        files.write(uri, b"data")


def test_a_directory_takes_the_place_of_another(tmp_path: Path) -> None:
    for name in ("old", "new"):
        files.write(f"{tmp_path}/{name}/inner/file", name.encode())
    files.replace(f"{tmp_path}/new", (tmp_path / "old").as_uri())
    assert (tmp_path / "old/inner/file").read_text() == "new"
    files.replace(str(tmp_path / "old"), f"{tmp_path}/fresh")
    assert [path.name for path in tmp_path.iterdir()] == ["fresh"]


def test_what_is_there_comes_back_where_nothing_can_take_its_place(tmp_path: Path) -> None:
    files.write(f"{tmp_path}/old/file", b"old")
    with pytest.raises(OSError, match="gone"):
        files.replace(f"{tmp_path}/gone", f"{tmp_path}/old")
    assert (tmp_path / "old/file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_deleted_is_a_file_a_directory_or_nothing(tmp_path: Path) -> None:
    files.write(f"{tmp_path}/deep/er/file", b"")
    files.write(f"{tmp_path}/file", b"")
    for name in ("deep", "file", "nothing"):
        files.delete(f"{tmp_path}/{name}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("folder", "path"),
    [
        ("/runs", "/runs/x/y"),
        ("/runs/", "/runs/x/y"),
        ("/", "/x/y"),
        ("/a?b", "/a?b/x/y"),
        ("file:///a?b", "file:///a?b/x/y"),
        ("s3://key:secret@bucket/runs", "s3://key:secret@bucket/runs/x/y"),
        ("s3a://bucket/runs/?region=a&scheme=http", "s3a://bucket/runs/x/y?region=a&scheme=http"),
    ],
)
def test_names_are_joined_before_the_options_of_a_uri(folder: str, path: str) -> None:
    assert files.join(folder, "x/y") == path
