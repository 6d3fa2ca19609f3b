"""Headless Chromium: a page's elements, attributes and screenshot after its scripts."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from html import unescape
from pathlib import Path

PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")
"""What it may be called, the best first."""

_LONGEST = 120.0  # seconds until a hanging browser is killed
_CLOCK = "--virtual-time-budget=5000"  # milliseconds of the page's own clock, run as fast as possible


@dataclass(frozen=True)
class Browser:
    """A browser; every page gets a new process.

    Attributes:
        program: path of the executable.
    """

    program: str

    @classmethod
    def find(cls) -> Browser | None:
        """The installed browser; None if there is none."""
        found = next((path for path in map(shutil.which, PROGRAMS) if path is not None), None)
        return None if found is None else cls(found)

    def dom(self, page: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> str:
        """The page's elements as HTML, after its scripts.

        Args:
            page: path of the file.
            width: of the window, pixels.
            height: of the window, pixels.
            dark: whether to prefer a dark page.
        """
        return self._run(page, ["--dump-dom", _CLOCK], (width, height), dark=dark)

    def data(self, page: Path, **window: int | bool) -> dict[str, str]:
        """The ``data-`` attributes of the page's root and body, after its scripts; see ``dom``."""
        dom = self.dom(page, **window)
        tags = re.findall(r"<(?:html|body)\b[^>]*>", dom)
        return {name: unescape(value) for tag in tags for name, value in re.findall(r'data-([\w-]+)="([^"]*)"', tag)}

    def screenshot(self, page: Path, image: Path, *, width: int = 1200, height: int = 1600, dark: bool = False) -> None:
        """Write a screenshot as PNG; see ``dom``."""
        self._run(page, [f"--screenshot={image}", _CLOCK], (width, height), dark=dark)

    def seconds(self, page: Path) -> float:
        """Seconds from the browser's start until the page sets ``data-at``; on the real clock.

        Raises:
            RuntimeError: the page was loaded and set no ``data-at``.
        """
        start = time.time()
        found = re.search(r'data-at="([\d.]+)"', self._run(page, ["--dump-dom"]))
        if found is None:
            raise RuntimeError(f"{page} was loaded and does not say when it was drawn")
        return float(found[1]) - start

    def _run(self, page: Path, options: list[str], window: tuple[int, int] = (1200, 900), *, dark: bool = False) -> str:
        with tempfile.TemporaryDirectory(prefix="sparkdl-browser-", ignore_cleanup_errors=True) as profile:
            fixed = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
            size, own = f"--window-size={window[0]},{window[1]}", f"--user-data-dir={profile}"
            look = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
            command = [self.program, *fixed, size, own, look, *options, page.resolve().as_uri()]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LONGEST)
        if done.returncode:
            raise RuntimeError(f"{self.program} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout
