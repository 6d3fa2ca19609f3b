"""Links within the repository lead to files and headings that are there."""

from __future__ import annotations

import posixpath
import re

import pytest

from tests.docs.pages import ROOT, anchors, everything, links, read, slug

OUTSIDE = re.compile(r"[a-z][a-z+.-]*:", re.IGNORECASE)


def broken(page: str, text: str) -> list[str]:
    """What is wrong with the links of a page."""
    wrong = []
    for line, target in links(text):
        path, _, anchor = target.partition("#")
        if OUTSIDE.match(target):
            continue
        place = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        there = place == page or (ROOT / place).exists()
        if place.startswith("..") or target.startswith("/") or not there:
            wrong.append(f"{page}:{line}: {target} is not there")
        elif anchor and anchor not in anchors(text if place == page else read(place)):
            wrong.append(f"{page}:{line}: {place} has no heading {anchor!r}")
    return wrong


@pytest.mark.parametrize("page", everything())
def test_links_lead_somewhere(page):
    assert broken(page, read(page)) == []


def test_all_kinds_of_pages_are_looked_at():
    found = set(everything())
    assert {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/index.md", "benchmarks/fit/README.md"} <= found
    assert not [page for page in found if page.startswith((".venv", "build"))]


# ---- and what is wrong is found -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "link",
    [
        "[a](nowhere.md)",
        "[a](../README.md#nothing)",
        "[a](#nothing)",
        "[a](../../outside.md)",
        "[a](/docs/rounds.md)",
        "| [a](nowhere) |\n|---|",
        "![a](picture.png)",
        "[a][b]\n\n[b]: nowhere.md",
    ],
)
def test_a_link_to_nowhere_is_found(link):
    assert len(broken("docs/page.md", f"# A page\n\n{link}\n")) == 1


@pytest.mark.parametrize(
    "link",
    [
        "[a](rounds.md)",
        "[a](../conf/spark)",
        "[a](rounds.md#params-of-rounds)",
        "[a](#a-page)",
        "[a](https://example.com/nowhere#at-all)",
        "`[a](nowhere.md)`",
        "```text\n[a](nowhere.md)\n```",
    ],
)
def test_a_good_link_is_none(link):
    assert broken("docs/page.md", f"# A page\n\n{link}\n") == []


@pytest.mark.parametrize(
    ("heading", "expected"),
    [
        ("What a member is given", "what-a-member-is-given"),
        ("`transform`, and back", "transform-and-back"),
        ("Two verbs, three clusters", "two-verbs-three-clusters"),
        ("fit & transform", "fit--transform"),
        ("[Unreleased]", "unreleased"),
        ("snake_case", "snake_case"),
    ],
)
def test_anchors_are_those_of_github(heading, expected):
    assert anchors(f"# {heading}\n") == {expected}


def test_the_second_of_two_headings_is_numbered():
    assert anchors("# A\n\n# A\n\n# B\n") == {"a", "a-1", "b"}
    assert slug("  A  b ") == "a--b"
