"""The site: its pages, its tables of contents, its links into the repository, and the API that it describes.

``make docs``, a part of ``make check``, builds it, and every warning of Sphinx's is an error there.
"""

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
from tests.docs.pages import ROOT, everything, in_language, newcomers, read, tokens


@pytest.fixture(scope="module")
def repository():
    """docs/repository.py, which is on Sphinx's path alone."""
    spec = importlib.util.spec_from_file_location("repository", ROOT / "docs/repository.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_every_page_is_in_one_table_of_contents(repository):
    pages = [page for page in everything() if repository.PAGES.fullmatch(page)]
    entries = Counter(entry for page in pages for _, below in repository.contents(page, read(page)) for entry in below)
    assert entries == Counter({page.removesuffix(".md") for page in pages} - {repository.INDEX})
    captions = [caption for caption, _ in repository.contents("docs/index.md", read("docs/index.md"))]
    assert captions[:4] == ["Begin", "Train", "Score and monitor", "Operate"]


def test_contents_of_a_page_are_the_pages_below(repository):
    text = "[a](clusters/yarn.md), [b](rounds.md), [c](clusters/standalone.md#slots), [d](clusters/yarn.md)"
    below = ["docs/clusters/yarn", "docs/clusters/standalone"]
    assert repository.contents("docs/clusters.md", text) == [("", below)]
    assert repository.contents("docs/recovery.md", text) == []
    assert "/docs/clusters/yarn\n/docs/clusters/standalone\n```" in repository.toctrees("docs/clusters.md", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](../jobs/train.py)", "[a](repository:jobs/train.py)"),
        ("[a](../conf/spark)", "[a](repository:conf/spark)"),
        ("[a](../benchmarks/fit#result)", "[a](../benchmarks/fit/README.md#result)"),
        ("[a](#slots)", None),
        ("[a](https://example.com/train.py)", None),
        ("[a](../nowhere.py)", None),
        ("[a](images/rooms.svg)", None),
        ("````text\n```\n[a](../jobs/train.py)\n```\n````", None),
    ],
)
def test_links_lead_to_pages_or_to_files(repository, text, expected):
    assert repository.rewritten("docs/page.md", f"{text}\n") == f"{expected or text}\n"


def test_linked_folder_has_a_page_with_its_files(repository):
    linked = repository.linked({"docs/page.md": "[a](../conf/spark), [b](../jobs/train.py)"})
    assert linked >= {"conf/spark", "conf/spark/local.conf", "conf/spark/yarn.conf", "jobs/train.py"}
    assert "jobs/predict.py" not in linked


def test_page_of_a_notebook_has_its_outputs(repository, monkeypatch, tmp_path):
    bridge = pytest.importorskip("sphinx.highlighting").PygmentsBridge("html", "default")
    cells = [
        {"cell_type": "markdown", "source": ["# Digits\n", "and *more*"]},
        {"cell_type": "code", "source": "print(1 < 2)", "outputs": [{"output_type": "stream", "text": ["<True>\n"]}]},
        {
            "cell_type": "code",
            "source": "plot()",
            "outputs": [{"data": {"image/png": "iVBO\nRw0K", "text/plain": "<F>"}}],
        },
        {"cell_type": "raw", "source": ["<raw>"]},
    ]
    (tmp_path / "digits.ipynb").write_text(json.dumps({"cells": cells}))
    monkeypatch.setattr(repository, "ROOT", tmp_path)
    body = repository._body(SimpleNamespace(highlighter=bridge), "digits.ipynb")
    assert "<h1>Digits</h1>" in body
    assert "<em>more</em>" in body
    assert "<pre>&lt;True&gt;\n</pre>" in body
    assert '<img alt="output of the cell" src="data:image/png;base64,iVBORw0K">' in body
    assert "&lt;F&gt;" not in body
    assert "<pre>&lt;raw&gt;</pre>" in body


DIRECTIVE = re.compile(r"^\.\. auto(class|function|exception):: ([\w.]+)$", re.MULTILINE)
DESCRIBED = {name: kind for block in in_language("{eval-rst}") for kind, name in DIRECTIVE.findall(block.code)}


def test_public_names_and_their_docstrings():
    assert {f"sparkdl.{name}" for name in sparkdl.__all__} <= set(DESCRIBED)
    for module in ("sparkdl.errors", "sparkdl.data", "sparkdl.ml.tracking"):
        for name in resolve_name(module).__all__:
            assert {f"{module}.{name}", f"sparkdl.{name}"} & set(DESCRIBED), f"{module}.{name}"
    for name, kind in DESCRIBED.items():
        described = resolve_name(name)
        assert inspect.getdoc(described), name
        assert inspect.isclass(described) == (kind != "function"), name


NAMED = re.compile(r"sparkdl(\.\w+)+")
FILES = re.compile(r"(sparkdl|jobs|conf|examples|tests|benchmarks|docs)/[\w./-]+\.(py|md|yaml|conf|sh|txt)")
NO_MODULES = re.compile(r"sparkdl\.(version|runDir|error|pipeline\.\w+)|sparkdl\.tar\.gz")  # tags of MLflow, an archive
FUTURE = re.compile(r"\b(coming soon|not yet|planned|roadmap|TODO|in a future)\b", re.IGNORECASE)


@pytest.mark.parametrize("page", newcomers())
def test_page_names_existing_things(page):
    assert "/adr/" in page or not FUTURE.search(read(page))
    inline = [child for token in tokens(read(page)) for child in token.children or () if child.type == "code_inline"]
    for text in (child.content for child in inline):
        name = NAMED.match(text)
        if name and not NO_MODULES.match(text) and not FILES.match(text):
            resolve_name(name[0])
        assert not FILES.fullmatch(text) or (ROOT / text).exists(), text


def test_readme_is_short_and_repeats_no_row_of_the_comparison():
    table = re.compile(r"^\| \| TorchDistributor.*?(?=^[^|]|\Z)", re.MULTILINE | re.DOTALL)
    heads, (first, second) = zip(
        *((rows[0], {row.split("|")[1] for row in rows[2:]}) for page in ("README.md", "docs/comparison.md")
          for rows in [table.search(read(page))[0].splitlines()]),
        strict=True,
    )  # fmt: skip
    assert heads[0] == heads[1]
    assert not first & second
    assert len(first) > 5
    assert len(read("README.md").splitlines()) <= 110
