"""Blocks of settings: Spark knows the keys, and images copy existing files."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, in_language
from tests.spark.test_conf import HOMES, OPEN, UNDECLARED

PROPERTIES = in_language("properties")
LINE = re.compile(r"(spark\.\S+)\s+(\S.*)")


def test_spark_knows_every_key(spark):
    java = spark.sparkContext._jvm
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    for home in HOMES:
        java.java.lang.Class.forName(home, True, loader)
    find = java.org.apache.spark.internal.config.ConfigEntry.findEntry
    for block in PROPERTIES:
        for line in block.code.splitlines():
            key = LINE.fullmatch(line)[1]
            assert OPEN.fullmatch(key) or key in UNDECLARED or find(key), f"{block}: Spark does not know {key}"


@pytest.mark.parametrize("block", PROPERTIES, ids=str)
def test_settings_are_unique_keys_with_values(block):
    lines = block.code.splitlines()
    settings = dict(LINE.fullmatch(line).groups() for line in lines)
    assert len(settings) == len(lines)
    if {"spark.executor.cores", "spark.task.cpus"} <= set(settings):
        assert int(settings["spark.executor.cores"]) % int(settings["spark.task.cpus"]) == 0


@pytest.mark.parametrize("block", in_language("dockerfile"), ids=str)
def test_image_copies_existing_files(block):
    lines = [line.split() for line in block.code.splitlines()]
    assert {words[0] for words in lines} <= {"FROM", "USER", "COPY", "RUN", "ENV", "WORKDIR"}
    pinned = (ROOT / "conf/constraints.txt").read_text(encoding="utf-8")
    (version,) = re.findall(r"^pyspark==(.+)$", pinned, re.MULTILINE)
    assert lines[0] == ["FROM", f"apache/spark:{version}-python3"]
    for words in lines:
        if words[0] == "COPY":
            assert all((ROOT / source).exists() for source in words[1:-1]), words
