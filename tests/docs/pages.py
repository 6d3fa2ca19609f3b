"""The pages of the repository as tests read them: their blocks of code, their headings and their links."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]

INDENTED = "indented"  # the language of a block without a fence


@dataclass(frozen=True)
class Block:
    """A block of code: its page below the root, its first line from 1, its language and its code."""

    page: str
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def newcomers() -> list[str]:
    """The pages whose blocks run: the front page and all in docs/."""
    return ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]


def everything() -> list[str]:
    """All Markdown of the repository."""
    tops = ("benchmarks", "conf", "docs", "examples", "jobs", "sparkdl", "tests")
    below = (path for top in tops for path in (ROOT / top).rglob("*.md"))
    return sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *below))


@cache
def tokens(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> Iterator[Block]:
    for token in tokens(read(page)):
        if token.map is None or token.type not in ("fence", "code_block"):
            continue
        fenced = token.type == "fence"
        language = (token.info.split() or [""])[0] if fenced else INDENTED
        yield Block(page, token.map[0] + 1 + fenced, language, token.content)


def in_language(language: str) -> list[Block]:
    return [block for page in newcomers() for block in blocks(page) if block.language == language]


def anchors(text: str) -> set[str]:
    """GitHub's anchors of headings: letters, digits, hyphens, underscores; the second of a kind ends in -1."""
    count: Counter[str] = Counter()
    names = set()
    for before, token in itertools.pairwise(tokens(text)):
        if before.type == "heading_open":
            title = "".join(child.content for child in token.children or () if child.type in ("text", "code_inline"))
            name = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
            names.add(f"{name}-{count[name]}" if count[name] else name)
            count[name] += 1
    return names


def links(text: str) -> Iterator[tuple[int, str]]:
    """The links and pictures of a page, with the line that their paragraph or row begins in."""
    for token in tokens(text):
        line = token.map[0] + 1 if token.map else 0
        for child in token.children or ():
            target = child.attrGet("href") if child.type == "link_open" else child.attrGet("src")
            if target is not None:
                yield line, str(target)
