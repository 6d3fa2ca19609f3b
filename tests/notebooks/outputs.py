"""What is kept of a notebook that has run, and of which kinds a cell's outputs are."""

from __future__ import annotations

import re
import socket
from typing import Any

from nbformat import NotebookNode

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
"""Of every notebook, whichever Python has run it."""

PROGRESS = re.compile(r"[a-z][a-z ,\d]*: ")
"""How a line on standard error begins that belongs there: what is being done, as progress says it."""

HERE = "localhost"


def tidied(notebook: NotebookNode) -> NotebookNode:
    """The notebook with the name of this host replaced, and with no more metadata than it needs; in place."""
    notebook.metadata = NotebookNode(METADATA)
    host = re.compile(rf"(?<![\w.-]){re.escape(socket.gethostname())}(?![\w-])")
    for cell in notebook.cells:
        cell.metadata = NotebookNode()
        for output in cell.get("outputs", ()):
            if "text" in output:
                output.text = host.sub(HERE, output.text)
            if "data" in output:
                output.metadata = NotebookNode()
                output.data = NotebookNode({kind: _told(value, host) for kind, value in output.data.items()})
    return notebook


def kinds(cell: NotebookNode) -> list[str]:
    """Of which kinds a cell's outputs are, each once: ``progress``, ``text``, ``table``, ``picture`` or ``error``."""
    return sorted({_kind(output) for output in cell.get("outputs", ())})


def _kind(output: NotebookNode) -> str:
    if output.output_type == "stream":
        return "text" if output.name == "stdout" else "progress"
    if output.output_type == "error":
        return "error"
    if "image/png" in output.data:
        return "picture"
    return "table" if "<table" in "".join(output.data.get("text/html", "")) else "text"


def _told(value: Any, host: re.Pattern[str]) -> Any:
    return host.sub(HERE, value) if isinstance(value, str) else value
