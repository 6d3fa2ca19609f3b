"""Every link within the repository leads to a file, and to a heading if it names one."""

from __future__ import annotations

import posixpath
import re

import pytest

from tests.docs.pages import ROOT, anchors, everything, links, read

OUTSIDE = re.compile(r"[a-z][a-z+.-]*:", re.IGNORECASE)
BROKEN = """[a](nowhere.md) [a](../README.md#nothing) [a](#nothing) [a](../../outside.md) [a](/docs/rounds.md)
![a](picture.png) [a][b]

| [a](nowhere) |
|---|

[b]: nowhere.md
"""


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


def test_broken_links_are_reported():
    assert len(broken("docs/page.md", BROKEN)) == 8
