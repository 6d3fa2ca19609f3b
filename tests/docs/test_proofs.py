"""docs/proofs.md names a test for each promise of the pages: neither a page nor a test changes alone."""

from __future__ import annotations

import ast
import itertools
import re

from tests.docs.pages import ROOT, newcomers, read, tokens

PROOFS, ASSUMPTIONS = "docs/proofs.md", "docs/assumptions.md"
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def rows(text: str) -> list[tuple[str, str]]:
    """The first two cells of a text's rows of tables, without headings."""
    lines = re.findall(r"^\| (.*?) \| (.*?) \|", text, re.MULTILINE)
    return [pair for pair in lines if pair not in [("promise", "tests"), ("guarantee", "condition")]]


def promises(page: str) -> list[str]:
    """The guarantees of assumptions.md; the sentences of another page with the word bit-identical, without links."""
    if page == ASSUMPTIONS:
        return [guarantee for guarantee, _ in rows(read(page))]
    texts = [LINK.sub(r"\1", token.content) for token in tokens(read(page)) if token.type == "inline"]
    sentences = itertools.chain(*(re.split(r"(?<=[.;:])\s+", re.sub(r"\s+", " ", text)) for text in texts))
    return [sentence.rstrip(".;:") for sentence in sentences if "bit-identical" in sentence]


def proofs() -> dict[str, list[tuple[str, str]]]:
    """The rows of each section of proofs.md, by page."""
    _, *parts = re.split(r"^## (.*)$", read(PROOFS), flags=re.MULTILINE)
    pages = (name if name == "README.md" else f"docs/{name}" for name in parts[::2])
    return dict(zip(pages, map(rows, parts[1::2]), strict=True))


def test_each_promise_has_its_row():
    pages = [page for page in newcomers() if page not in (PROOFS, "docs/glossary.md") and "/adr/" not in page]
    found = {page: found for page in pages if (found := promises(page))}
    assert {page: [promise for promise, _ in table] for page, table in proofs().items()} == found


def test_each_row_names_tests_that_exist():
    names = [re.findall(r"`(\S+)::(\S+)`", cell) for table in proofs().values() for _, cell in table]
    assert all(names)
    for file, name in {*itertools.chain(*names)}:
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name in functions, f"{file} has no {name}"
