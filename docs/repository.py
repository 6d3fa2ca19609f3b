"""The repository as a site: links from pages to other files of it, and lists of links as tables of contents.

Pages are Markdown as GitHub shows it, and no address of a repository is written anywhere. So on the site

* a link to a folder leads to its README.md, if that is a page;
* a link to another file or folder, ``../jobs/train.py``, leads to a page with its text, ``source/jobs/train.py.html``;
* a list of links is a table of contents: in the index, under each heading, of the pages that are named there; in
  another page of those that lie below it, as docs/clusters/ below docs/clusters.md, and its folder below a README.md.

Links are looked for line by line outside of fenced code, in the form ``[text](target)``. Links in docstrings and in
notebooks stay what they are.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
INDEX = "docs/index"
PAGES = re.compile(r"docs/.*\.md|benchmarks/(.*/)?README\.md|CHANGELOG\.md|CONTRIBUTING\.md")
"""Files that are pages: what ``include_patterns`` of conf.py says, by path below the root."""
SCHEME = "repository:"

_LINK = re.compile(r"(?<=\]\()[^()\s]+(?=\))")
_FENCE = re.compile(r"\s*(```+|~~~+)")
_PICTURES = (".png", ".svg")
_LANGUAGES = {
    ".conf": "properties",
    ".ipynb": "json",
    ".md": "markdown",
    ".py": "python",
    ".sh": "bash",
    ".toml": "toml",
    ".yaml": "yaml",
}


def prose(text: str) -> Iterator[tuple[str, bool]]:
    """The lines of a page, and whether they are outside of fenced code."""
    fence = ""
    for line in text.splitlines(keepends=True):
        mark = _FENCE.match(line)
        if fence:
            yield line, False
            if mark and mark[1].startswith(fence) and line.strip() == mark[1]:
                fence = ""
        else:
            fence = mark[1] if mark else ""
            yield line, not fence


def place(page: str, target: str) -> str | None:
    """What a link leads to, as a path below the root; None where it leads out of the repository or within the page."""
    path = target.partition("#")[0]
    if not path or re.match(r"[a-z][a-z+.-]*:|/", path):
        return None
    found = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
    return None if found.startswith("..") else found


def page_of(path: str) -> str | None:
    """The page that a path below the root is on the site, if it is one: itself, or a folder's README.md."""
    if (ROOT / path).is_dir():
        path = posixpath.join(path, "README.md")
    return path if PAGES.fullmatch(path) and (ROOT / path).is_file() else None


def rewritten(page: str, text: str) -> str:
    """A page whose links lead to pages, or to ``repository:PATH`` where they lead to other files."""

    def site(match: re.Match[str]) -> str:
        path = place(page, match[0])
        if path is None or not (ROOT / path).exists() or path.endswith(_PICTURES):
            return match[0]  # what leads nowhere is for Sphinx to complain of; pictures it copies itself
        found = page_of(path)
        if found is None:
            return SCHEME + path
        anchor = match[0].partition("#")[1:]
        return posixpath.relpath(found, posixpath.dirname(page) or ".") + "".join(anchor)

    return "".join(_LINK.sub(site, line) if outside else line for line, outside in prose(text))


def contents(page: str, text: str) -> list[tuple[str, list[str]]]:
    """The tables of contents that a page's links make: captions, and pages without their suffix."""
    stem = page.removesuffix(".md")
    home = posixpath.dirname(page) if page.endswith("README.md") else stem
    tables: list[tuple[str, list[str]]] = [("", [])]
    for line, outside in prose(text):
        if outside and line.startswith("## ") and stem == INDEX:
            tables.append((line[3:].strip(), []))
        for link in _LINK.findall(line) if outside else ():
            path = place(page, link)
            found = None if path is None else page_of(path)
            if found in (None, page) or not (stem == INDEX or posixpath.dirname(found or "").startswith(home)):
                continue
            if not any((found or "").removesuffix(".md") in entries for _, entries in tables):
                tables[-1][1].append((found or "").removesuffix(".md"))
    return [table for table in tables if table[1]]


def toctrees(page: str, text: str) -> str:
    """The same, as directives; an index names them all, and where another page has its own they go there."""
    below = contents(page, text)
    blocks = []
    for caption, entries in below:
        title = [f":caption: {caption}"] if caption else []
        blocks.append("\n".join(["```{toctree}", ":hidden:", *title, "", *(f"/{entry}" for entry in entries), "```"]))
    return "\n\n" + "\n\n".join(blocks) + "\n" if blocks else ""


def linked(pages: dict[str, str]) -> set[str]:
    """The files and folders below the root that pages, texts by path, link to and that are no pages."""
    found = {link for page, text in pages.items() for link in _targets(rewritten(page, text))}
    inside = {path.relative_to(ROOT).as_posix() for folder in found for path in _files(ROOT / folder)}
    return found | {path for path in inside if page_of(path) is None}


def _targets(text: str) -> Iterator[str]:
    for line, outside in prose(text):
        for link in _LINK.findall(line) if outside else ():
            if link.startswith(SCHEME):
                yield link.removeprefix(SCHEME).partition("#")[0]


def _files(folder: Path) -> list[Path]:
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in found if path.is_file() and not path.name.startswith(".")]


# ---- what Sphinx calls --------------------------------------------------------------------------------------------


def setup(app: Any) -> dict[str, Any]:
    """Sphinx's entry point."""
    from pygments.lexers.special import TextLexer

    app.add_lexer("cron", TextLexer)  # which Pygments has not
    app.connect("source-read", read_source)
    app.connect("doctree-resolved", resolve_links)
    app.connect("html-collect-pages", collect_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def read_source(app: Any, name: str, source: list[str]) -> None:
    """A page before it is parsed."""
    page = f"{name}.md"
    source[0] = rewritten(page, source[0]) + toctrees(page, source[0])


def resolve_links(app: Any, tree: Any, name: str) -> None:
    """Links to files, in a page that is about to be written."""
    from docutils import nodes

    for node in tree.findall(nodes.reference):
        uri = node.get("refuri", "")
        if uri.startswith(SCHEME):
            path = uri.removeprefix(SCHEME).partition("#")[0]
            node["refuri"] = app.builder.get_relative_uri(name, f"source/{path}")
            node["internal"] = True


def collect_pages(app: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The pages of the files that are linked to."""
    pages = {f"{name}.md": (ROOT / f"{name}.md").read_text(encoding="utf-8") for name in app.env.found_docs}
    for path in sorted(linked(pages)):
        body = f"<h1><code>{escape(path)}</code></h1>\n{_body(app.builder, path)}"
        yield f"source/{path}", {"parents": [], "title": path, "body": body}, "page.html"


def _body(builder: Any, path: str) -> str:
    file = ROOT / path
    if file.is_dir():
        links = (builder.get_relative_uri(f"source/{path}", f"source/{path}/{each.name}") for each in _files(file))
        rows = zip(links, _files(file), strict=True)
        return "<ul>" + "".join(f'<li><a href="{link}">{escape(each.name)}</a></li>' for link, each in rows) + "</ul>"
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".ipynb":
        return "\n".join(_cell(builder, cell) for cell in json.loads(text)["cells"])
    language = "make" if file.name == "Makefile" else _LANGUAGES.get(file.suffix, "text")
    return str(builder.highlighter.highlight_block(text, language, force=True))


def _cell(builder: Any, cell: dict[str, Any]) -> str:
    """A notebook's cell: nothing is run, and its kept outputs are shown as pictures or as text."""
    from markdown_it import MarkdownIt

    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return str(MarkdownIt("commonmark").enable("table").render(text))
    if cell["cell_type"] != "code":
        return f"<pre>{escape(text)}</pre>"
    code = str(builder.highlighter.highlight_block(text, "python", force=True))
    return code + "".join(map(_output, cell.get("outputs", [])))


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:  # base64, which a file may break into lines
        picture = "".join("".join(data["image/png"]).split())
        return f'<img alt="output of the cell" src="data:image/png;base64,{escape(picture)}">'
    printed = "".join(output.get("text") or data.get("text/plain", []))
    return f"<pre>{escape(printed)}</pre>" if printed else ""
