"""Claims of pages that no block of code shows: search terms, quoted messages, and the versions that are tested."""

from __future__ import annotations

import ast
import itertools
import re
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pyspark
import pytest

from tests.docs.pages import ROOT, newcomers, read, tokens

TERMS = (
    *("scheduler", "validation set", "imbalanced", "out of memory", "troubleshooting", "FAQ", "inference", "serving"),
    *("ONNX", "fine-tune", "hyperparameter", "tabular", "categorical", "wheel", "compatibility", "streaming"),
    *("mixed precision", "limitation"),
)


def headlines(page: str) -> str:
    """The headings and the first paragraph of a page, in lower case."""
    found = tokens(read(page))
    texts = [child.content for mark, child in itertools.pairwise(found) if mark.type == "heading_open"]
    paragraphs = [child.content for mark, child in itertools.pairwise(found) if mark.type == "paragraph_open"]
    return "\n".join([*texts, *paragraphs[:1]]).lower()


@pytest.mark.parametrize("term", TERMS)
def test_search_term_stands_in_a_heading_or_a_first_paragraph(term):
    pages = [page for page in newcomers() if page.startswith("docs/") and "/adr/" not in page]
    assert [page for page in pages if term.lower() in headlines(page)]


VALUE = "\0"  # in a message's text, instead of a value
TROUBLESHOOTING = "docs/troubleshooting.md"
FOREIGN = "## Messages of Spark, Python and Linux"


def texts_of_source() -> Iterator[str]:
    """The strings of the package, with ``VALUE`` for each expression."""
    for path in sorted((ROOT / "sparkdl").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def messages(text: str) -> list[str]:
    """The first cells of the rows of tables, without the quotes of code."""
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


def quotes(message: str, text: str) -> bool:
    """Whether a message, with ``...`` for values, stands in a text of the source."""
    pattern = r"[\s\S]*?".join(re.escape(piece.strip()) for piece in message.split("...") if piece.strip())
    return re.search(pattern, text) is not None


OWN, OTHERS = map(messages, read(TROUBLESHOOTING).split(FOREIGN))


def test_page_has_twenty_messages():
    assert len({*OWN, *OTHERS}) == len(OWN) + len(OTHERS) >= 20


def test_quoted_messages_stand_in_the_source():
    texts = [*texts_of_source()]
    assert [message for message in OWN if not any(quotes(message, text) for text in texts)] == []
    assert not any(quotes("... workers need ... task slots at the same time", text) for text in texts)


def test_quoted_message_stands_in_spark():
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-core_*.jar")
    with zipfile.ZipFile(jar) as archive:
        content = archive.read("org/apache/spark/scheduler/TaskSetManager.class")
    (message,) = [message for message in OTHERS if "serialized results" in message]
    assert message.removesuffix("...").encode() in content


@pytest.fixture(scope="module")
def setup():
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def pins(name):
    text = (ROOT / "conf" / name).read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w.-]+)==(.+)$", text, re.MULTILINE))


def required(setup):
    """The range of versions of each package that users install."""
    extras = setup["options.extras_require"]
    texts = [
        setup["options"]["install_requires"],
        *(extras[name] for name in ("spark", "mlflow", "tensorboard", "report")),
    ]
    return dict(re.findall(r"^([\w-]+)(?:\[\w+\])?([<>=].*)$", "\n".join(texts), re.MULTILINE))


def test_oldest_versions_are_the_lower_bounds(setup):
    bounds = {name: re.match(r">=([\d.]+)", versions)[1].split(".") for name, versions in required(setup).items()}
    oldest = {name: version.split(".") for name, version in pins("oldest.txt").items()}
    assert {name: version[: len(bounds[name])] for name, version in oldest.items()} == bounds


def test_table_of_versions(setup):
    newest, oldest, ranges = pins("constraints.txt"), pins("oldest.txt"), required(setup)
    table = read("docs/install.md").partition("## Compatibility")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| `(.+?)` \| (\S+) \| (\S+) \|$", table, re.MULTILINE)
    assert [name for name, *_ in rows] == ["Spark", "torch", "Python", "pyarrow", "pandas", "numpy"]
    for name, supported, tested, lowest in rows:
        package = "pyspark" if name == "Spark" else name
        if name == "Python":
            assert (supported, f">={lowest}") == (setup["options"]["python_requires"],) * 2
            assert f"sys.version_info >= ({tested.replace('.', ', ')})" in read("Makefile")
        else:
            assert (supported, tested, lowest) == (ranges[package], newest[package], oldest[package])


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
