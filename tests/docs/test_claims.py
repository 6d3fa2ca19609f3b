"""Claims of pages that no block of code shows: search terms, quoted messages, and the versions that are tested."""

from __future__ import annotations

import re
from configparser import ConfigParser

from tests.docs.pages import ROOT, read

# ---- versions -----------------------------------------------------------------------------------------------------


def test_table_of_versions():
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    options = setup["options"]
    required = dict(re.findall(r"^([\w-]+)([<>=].*)$", options["install_requires"], re.MULTILINE))
    required |= {"pyspark": setup["options.extras_require"]["spark"].strip().removeprefix("pyspark")}
    pins, oldest = (
        dict(re.findall(r"^([\w.-]+)==(.+)$", (ROOT / "conf" / name).read_text(encoding="utf-8"), re.MULTILINE))
        for name in ("constraints.txt", "oldest.txt")
    )
    table = read("docs/install.md").partition("## Compatibility")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| `(.+?)` \| (\S+) \|(.*)\|$", table, re.MULTILINE)
    assert [name for name, *_ in rows] == ["Spark", "torch", "Python", "pyarrow", "pandas", "numpy"]
    for name, supported, tested, also in rows:
        package = "pyspark" if name == "Spark" else name
        if name == "Python":
            assert supported == options["python_requires"]
            assert f"sys.version_info >= ({tested.replace('.', ', ')})" in read("Makefile")
        else:
            assert (supported, tested) == (required[package], pins[package])
        assert [*re.findall(r"\d+\.\d+\.\d+", also)] == ([oldest[package]] if package in oldest else [])
