"""Tidies the outputs of a notebook, and names their kinds."""

from __future__ import annotations

import re
import socket

from nbformat import NotebookNode

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}

PROGRESS = re.compile(r"[a-z][a-z ,\d]*: ")
"""The beginning of a progress line on standard error."""
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
                values = {k: host.sub(HERE, v) if isinstance(v, str) else v for k, v in output.data.items()}
                output.data = NotebookNode(values)
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
