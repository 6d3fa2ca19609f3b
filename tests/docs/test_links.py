"""Links within the repository lead to existing files and headings."""

from __future__ import annotations

import posixpath
import re

import pytest

from tests.docs.pages import ROOT, anchors, everything, links, read

OUTSIDE = re.compile(r"[a-z][a-z+.-]*:", re.IGNORECASE)


def broken(page: str, text: str) -> list[str]:
    """What is wrong with the links of a page."""
    wrong = []
    for line, target in links(text):
        path, _, anchor = target.partition("#")
        if OUTSIDE.match(target):
            continue
        place = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        exists = place == page or (ROOT / place).exists()
        if place.startswith("..") or target.startswith("/") or not exists:
            wrong.append(f"{page}:{line}: {target} is not there")
        elif anchor and anchor not in anchors(text if place == page else read(place)):
            wrong.append(f"{page}:{line}: {place} has no heading {anchor!r}")
    return wrong


@pytest.mark.parametrize("page", everything())
def test_links_of_a_page(page):
    assert broken(page, read(page)) == []


def test_pages_of_all_folders_are_checked():
    pages = set(everything())
    assert {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/index.md", "benchmarks/fit/README.md"} <= pages
    assert not [page for page in pages if page.startswith((".venv", "build"))]


BROKEN = """[a](nowhere.md) [a](../README.md#nothing) [a](#nothing) [a](../../outside.md) [a](/docs/rounds.md)
![a](picture.png) [a][b]

| [a](nowhere) |
|---|

[b]: nowhere.md
"""
UNBROKEN = """[a](rounds.md) [a](../conf/spark) [a](rounds.md#params-of-rounds) [a](#a-page) `[a](nowhere.md)`
[a](https://example.com/nowhere#at-all)

```text
[a](nowhere.md)
```
"""


def test_broken_links_are_found():
    assert len(broken("docs/page.md", f"# A page\n\n{BROKEN}")) == 8
    assert broken("docs/page.md", f"# A page\n\n{UNBROKEN}") == []


def test_anchors_equal_those_of_github():
    text = "# The `fit`, and back\n\n# fit & transform\n\n# [Unreleased]\n\n# snake_case\n\n# A\n\n# A\n"
    assert anchors(text) == {"the-fit-and-back", "fit--transform", "unreleased", "snake_case", "a", "a-1"}
