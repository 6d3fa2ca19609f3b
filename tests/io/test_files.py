"""Files written whole, by path and by URI, and what errors and logs show of a URI or credentials."""

import os

import pytest
from pyarrow import fs

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.redaction import masked, public
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
        *[
            (uri, "has a blank before or in its scheme; expected a path")
            for uri in (" s3://key:secret@b/a", "s\t3://b/a")
        ],
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


# ---- what errors, pages and trackers show of credentials: nothing, in any of their forms -----------------------------


# A text, and what is shown of it; {n} is a line's end.
SECRETS = r"""
https://user:p@SECRET@host/x -> https://host/x
S3A://KEY:SECRET@bucket -> S3A://bucket
s3://KEY:SE/CRET@bucket/x?a=b -> s3://bucket/x
s3a://KEY:123/SECRET@bucket -> s3a://bucket
https://user:p'SECRET@host/x -> https://host/x
https://user:p?SECRET@host/x -> https://host/x
https://user:SECRET%40x@host/ -> https://host/
https://user:p SECRET@host/x and mail me@x.org -> https://host/x and mail me@x.org
https://user:p@ss word SECRET@host/x -> https://host/x
https%3A%2F%2Fuser%3ASECRET%40host%2Fx -> https%3A%2F%2F***%40host%2Fx
redis://:SE/CRET@host mongodb://u:SECRET@h1:27017,h2:27017/db -> redis://host mongodb://h1:27017,h2:27017/db
a://b,postgresql+psycopg2://u:SECRET@h/d ftp://u:SECRET@[::1]:21/x -> a://b,postgresql+psycopg2://h/d ftp://[::1]:21/x
https://h/x?access_key=SECRET&next=https://u:SECRET@h end -> https://h/x end
one{n}https://u:SECRET@h/x{n}two s3://K:SECRET@b -> one{n}https://h/x{n}two s3://b
hdfs://user@namenode:8020/runs -> hdfs://namenode:8020/runs
s3a://KEY:SECRET@bucket/runs?endpoint_override=x and more -> s3a://bucket/runs and more
jdbc:mysql://u:SECRET@h:3306/db jdbc:postgresql://h:5432/db?password=SECRET -> jdbc:mysql://h:3306/db jdbc:postgresql://h:5432/db
jdbc:sqlserver://h:1433;user=sa;password=p SECRET;encrypt=true -> jdbc:sqlserver://h:1433;user=sa;password=***;encrypt=true
jdbc:oracle:thin:scott/SECRET@//h:1521/x -> jdbc:oracle:thin:***@//h:1521/x
AccountName=n;AccountKey=SECRET==;EndpointSuffix=x -> AccountName=n;AccountKey=***;EndpointSuffix=x
sv=2020&ss=b&sig=SECRET%3D&se=1 token=SECRET&x=1 DB_PASSWORD=SECRET -> sv=2020&ss=b&sig=***&se=1 token=***&x=1 DB_PASSWORD=***
aws_secret_access_key = SECRET/SECRET+x -> aws_secret_access_key = ***
f(api_key='p SECRET', n=3) -> f(api_key=***, n=3)
{'password': 'p \'SECRET', 'user': 'x'} -> {'password': ***, 'user': 'x'}
"{\"password\": \"SECRET\", \"x\": 1}" -> "{\"password\": ***, \"x\": 1}"
password: my SECRET word{n}X-Auth-Token: SECRET{n}Authorization: Bearer SECRET -> password: ***{n}X-Auth-Token: ***{n}Authorization: ***
--conf spark.my.passwords.x=SECRET --conf spark.y=z -> --conf spark.my.passwords.x=*** --conf spark.y=z
spark.hadoop.fs.s3a.access.key=SECRET spark.ssl.keyPassword   SECRET -> spark.hadoop.fs.s3a.access.key=*** spark.ssl.keyPassword   ***
[('spark.x.secret.key', 'SECRET'), ('spark.x', 'y')] -> [('spark.x.secret.key', ***), ('spark.x', 'y')]
key AKIAIOSFODNN7EXAMPLE -----BEGIN PRIVATE KEY-----{n}SECRET{n}-----END -> key *** -----BEGIN PRIVATE KEY-----***-----END
"""  # noqa: E501
PLAIN = """
s3://bucket/key s3://bucket/a@b /a/b@c me@example.org git@github.com:org/repo file:///C:/x@y hdfs://host:9000/a@b
http://h1:27017,h2:27017/db@x http://[::1]:8080/x@y abfss://container@account.dfs.core.windows.net/runs
http://localhost:4040 by me@x.org; cannot open s3://bucket: mail me@x.org {"a": "s3://bucket/x", "to": "me@example.org"}
max_tokens: 512, tokenizer='bert', pad_token='[PAD]', token_type_ids=[1], token=None
the secret of speed: batches; is it? yes; a password is missing; cryptography.fernet.InvalidToken: it expired
"""


@pytest.mark.parametrize("line", SECRETS.strip().splitlines())
def test_secrets_are_masked(line):
    text, shown = line.replace("{n}", "\n").split(" -> ")
    assert masked(text) == masked(shown) == shown
    for quote in ("'", '"'):
        if quote not in text and "password:" not in text:
            assert masked(f"[{quote}{text}{quote}]") == f"[{quote}{shown}{quote}]"
    if "://" in text and not {*text} & {*"\n,; "} and "jdbc" not in text:
        assert public(text) == shown


def test_other_text_stays():
    assert masked(PLAIN) == PLAIN
    for word in PLAIN.split():
        assert public(word) == masked(word) == word


@pytest.mark.timeout(30)  # in quadratic time they would take minutes
@pytest.mark.parametrize(
    "part", ["a.", "a://", "a://b:c ", "a://b:c@", "password=", "'token': '", "spark.", "x_token: y\n"]
)
def test_long_texts_take_linear_time(part):
    masked(part * (100_000 // len(part)))
