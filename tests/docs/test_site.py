"""The site: its pages, its tables of contents, its links into the repository, and the API that it describes.

``make docs``, a part of ``make check``, builds it, and every warning of Sphinx's is an error there.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import sys
from collections import Counter
from pkgutil import resolve_name
from types import SimpleNamespace

import pytest

import sparkdl
from tests.docs.pages import ROOT, in_language, newcomers, read, tokens


@pytest.fixture(scope="module")
def repository():
    """docs/repository.py, which is on Sphinx's path alone."""
    spec = importlib.util.spec_from_file_location("repository", ROOT / "docs/repository.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def site_pages(repository):
    found = (path.relative_to(ROOT).as_posix() for top in ("docs", "benchmarks") for path in (ROOT / top).rglob("*.md"))
    return [page for page in (*found, "CHANGELOG.md", "CONTRIBUTING.md") if repository.PAGES.fullmatch(page)]


# ---- tables of contents -------------------------------------------------------------------------------------------


def test_every_page_is_in_one_table_of_contents(repository):
    pages = site_pages(repository)
    entries = Counter(entry for page in pages for _, below in repository.contents(page, read(page)) for entry in below)
    expected = {page.removesuffix(".md") for page in pages} - {repository.INDEX}
    assert set(entries) == expected
    assert [entry for entry, count in entries.items() if count > 1] == []


def test_the_index_has_a_table_under_each_heading(repository):
    captions = [caption for caption, _ in repository.contents("docs/index.md", read("docs/index.md"))]
    assert captions[:3] == ["Begin", "Train", "Run it"]


def test_a_page_has_those_below_it_alone(repository):
    text = "[a](clusters/yarn.md), [b](rounds.md), [c](clusters/standalone.md#slots), [d](clusters/yarn.md)"
    below = ["docs/clusters/yarn", "docs/clusters/standalone"]
    assert repository.contents("docs/clusters.md", text) == [("", below)]
    assert repository.contents("docs/recovery.md", text) == []
    assert "/docs/clusters/yarn\n/docs/clusters/standalone\n```" in repository.toctrees("docs/clusters.md", text)


# ---- links into the repository ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("../jobs/train.py", "repository:jobs/train.py"),
        ("../conf/spark", "repository:conf/spark"),
        ("../benchmarks/fit", "../benchmarks/fit/README.md"),
        ("../benchmarks/fit#result", "../benchmarks/fit/README.md#result"),
        ("../README.md", "repository:README.md"),
        ("rounds.md#what-params-mean", "rounds.md#what-params-mean"),
        ("#slots", "#slots"),
        ("https://example.com/train.py", "https://example.com/train.py"),
        ("../nowhere.py", "../nowhere.py"),
        ("images/rooms.svg", "images/rooms.svg"),
    ],
)
def test_links_lead_to_pages_or_to_files(repository, link, expected):
    assert repository.rewritten("docs/page.md", f"See [it]({link}).\n") == f"See [it]({expected}).\n"


def test_code_is_left_alone(repository):
    text = "```python\n[a](../jobs/train.py)\n```\n"
    assert repository.rewritten("docs/page.md", text) == text
    nested = "````text\n```\n[a](../jobs/train.py)\n```\n````\n"
    assert repository.rewritten("docs/page.md", nested) == nested


def test_a_folder_has_a_page_and_so_have_its_files(repository):
    found = repository.linked({"docs/page.md": "[a](../conf/spark), [b](../jobs/train.py)"})
    assert found >= {"conf/spark", "conf/spark/local.conf", "conf/spark/yarn.conf", "jobs/train.py"}
    assert "jobs/predict.py" not in found


def test_a_notebook_is_shown_with_what_it_has_printed(repository, monkeypatch, tmp_path):
    bridge = pytest.importorskip("sphinx.highlighting").PygmentsBridge("html", "default")
    cells = [
        {"cell_type": "markdown", "source": ["# Digits\n", "and *more*"]},
        {"cell_type": "code", "source": "print(1 < 2)", "outputs": [{"output_type": "stream", "text": ["<True>\n"]}]},
        {"cell_type": "raw", "source": ["<raw>"]},
    ]
    (tmp_path / "digits.ipynb").write_text(json.dumps({"cells": cells}))
    monkeypatch.setattr(repository, "ROOT", tmp_path)
    body = repository._body(SimpleNamespace(highlighter=bridge), "digits.ipynb")
    assert "<h1>Digits</h1>" in body
    assert "<em>more</em>" in body
    assert "<pre>&lt;True&gt;\n</pre>" in body
    assert "<pre>&lt;raw&gt;</pre>" in body


# ---- the API ------------------------------------------------------------------------------------------------------

DIRECTIVE = re.compile(r"^\.\. auto(class|function|exception):: ([\w.]+)$", re.MULTILINE)
DESCRIBED = {name: kind for block in in_language("{eval-rst}") for kind, name in DIRECTIVE.findall(block.code)}


def test_every_public_name_is_described():
    assert {f"sparkdl.{name}" for name in sparkdl.__all__} <= set(DESCRIBED)


def test_errors_and_submodules_of_the_pages_are_described():
    for module in ("sparkdl.errors", "sparkdl.data", "sparkdl.ml.tracking"):
        for name in resolve_name(module).__all__:
            assert {f"{module}.{name}", f"sparkdl.{name}"} & set(DESCRIBED), f"{module}.{name}"


@pytest.mark.parametrize("name", DESCRIBED)
def test_what_is_described_exists_and_says_what_it_is(name):
    found = resolve_name(name)
    assert inspect.getdoc(found)
    assert inspect.isclass(found) == (DESCRIBED[name] != "function")


# ---- what pages speak of --------------------------------------------------------------------------------------------

NAMED = re.compile(r"sparkdl(\.\w+)+")
FILES = re.compile(r"(sparkdl|jobs|conf|examples|tests|benchmarks|docs)/[\w./-]+\.(py|md|yaml|conf|sh|txt)")
NO_MODULES = re.compile(r"sparkdl\.(version|runDir|error)|sparkdl\.tar\.gz")  # tags of MLflow, an archive


def spoken(page):
    """What stands between backticks."""
    inline = (child for token in tokens(read(page)) for child in token.children or ())
    return [child.content for child in inline if child.type == "code_inline"]


@pytest.mark.parametrize("page", newcomers())
def test_names_and_files_that_pages_speak_of_are_there(page):
    for text in spoken(page):
        name = NAMED.match(text)
        if name and not NO_MODULES.match(text) and not FILES.match(text):
            resolve_name(name[0])
        if FILES.fullmatch(text):
            assert (ROOT / text).exists(), text


@pytest.mark.parametrize("page", [page for page in newcomers() if "/adr/" not in page])
def test_pages_say_what_is(page):
    """And not what will be."""
    assert not re.search(r"\b(coming soon|not yet|planned|roadmap|TODO|in a future)\b", read(page), re.IGNORECASE)


# ---- the comparison -------------------------------------------------------------------------------------------------


def comparison(page):
    """The table with the other systems, its first row included."""
    lines = read(page).splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("| | TorchDistributor"))
    last = next(index for index in range(first, len(lines)) if not lines[index].startswith("|"))
    return lines[first:last]


def test_the_front_page_and_the_site_compare_alike():
    assert comparison("README.md") == comparison("docs/comparison.md")
    assert len(comparison("README.md")) > 10
