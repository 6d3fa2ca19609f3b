"""What errors, pages and trackers show of credentials: nothing, in any of their forms."""

from __future__ import annotations

import pytest

from sparkdl.io.redaction import masked, public

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
