"""The commands of a page's shell blocks: what they are, and a folder to run them in."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.docs import substitutions
from tests.docs.pages import ROOT, Block, in_language
from tests.rounds.data import data_folder
from tests.sessions import driver_environment

BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Command:
    """A command of a page, its lines joined and its comment left out."""

    block: Block
    text: str

    @property
    def words(self) -> list[str]:
        """As the shell splits them."""
        return shlex.split(self.text)

    @property
    def as_run(self) -> str:
        """With what tests/docs/substitutions.py says."""
        return substitutions.shell(self.text)

    def __str__(self) -> str:
        return f"{self.block}: {self.text}"


def commands(block: Block) -> Iterator[Command]:
    """The commands of a block."""
    for line in re.sub(r"\\\n\s*", "", block.code).splitlines():
        text = re.sub(r"(^|\s+)#.*", "", line).strip()
        if text:
            yield Command(block, text)


def all_commands(pages: list[str] | None = None) -> list[Command]:
    """Those of all pages that newcomers read."""
    return [command for block in in_language("bash", pages) for command in commands(block)]


def checkout(folder: Path) -> Path:
    """A folder like a checkout, in which a command may write what it writes without touching this one."""
    folder.mkdir()
    for name in ("conf", "examples", "jobs"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("adult.data", "adult.test"):
        (folder / name).symlink_to(data_folder() / name)
    subprocess.run(
        [sys.executable, "examples/digits_to_parquet.py", "build/demo/data"], cwd=folder, check=True, timeout=60
    )
    return folder


def call(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a checkout, with this Python's programs first on the path."""
    environment = driver_environment(folder / "local", PATH=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
