"""Texts and charts of pages equal ``snapshot.json``.

To change a page, run ``python -m tests.report.test_snapshot``, which rewrites the file, and review the diff.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

from sparkdl.report import page_data
from sparkdl.report.tables import Table
from tests.report.cases import CASES

SNAPSHOT = Path(__file__).with_name("snapshot.json")
MOST = 16  # entries of a list that stand there one by one


def shown(value: Any) -> Any:
    """A value of the page as JSON; long lists by their ends and a digest."""
    if isinstance(value, Table):
        cells = [value.head, *value.rows]
        value = [[cell.text + f" ({cell.kind})" * bool(cell.kind) for cell in row] for row in cells]
        return shown(value) if len(value) > 1 else None
    if is_dataclass(value) and not isinstance(value, type):
        return {name: shown(item) for name, item in vars(value).items() if name != "figure"}
    if isinstance(value, dict):
        return {name: shown(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        items = [shown(item) for item in (sorted(value) if isinstance(value, set) else value)]
        if len(items) <= MOST:
            return items
        digest = hashlib.sha256(json.dumps(items).encode()).hexdigest()[:12]
        return {"first": items[:3], "last": items[-2:], "count": len(items), "digest": digest}
    return value


def lines(name: str) -> dict[str, Any]:
    """What is on a page, a line of JSON for each part of it and each chart."""
    data = page_data(CASES[name])
    data |= {f"drawn {chart}": figure for chart, figure in data.pop("drawn").items()}
    return {part: text for part, value in data.items() if (text := shown(value))}


@pytest.mark.parametrize("name", CASES)
def test_page_equals_snapshot(name):
    expected = json.loads(SNAPSHOT.read_text())
    assert list(expected) == list(CASES)
    assert json.loads(json.dumps(lines(name))) == expected[name]


if __name__ == "__main__":
    pages = []
    for case in CASES:
        parts = ",\n".join(f"  {json.dumps(part)}: {json.dumps(value)}" for part, value in lines(case).items())
        pages.append(f" {json.dumps(case)}: {{\n{parts}\n }}")
    SNAPSHOT.write_text("{\n" + ",\n".join(pages) + "\n}\n")
