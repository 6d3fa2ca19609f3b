"""Headless Chromium: what a page is when its scripts have run, and what it looks like."""

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

_LONGEST = 120.0  # seconds until a browser that hangs is given up
_VIRTUAL = 20_000  # milliseconds that a page's own clock may go on, which it does as fast as it can


@dataclass(frozen=True)
class Browser:
    """A browser, started anew for every page.

    Attributes:
        program: what is started.
    """

    program: str

    @classmethod
    def find(cls) -> Browser | None:
        """The one that is installed; None where none is."""
        found = next((path for path in map(shutil.which, PROGRAMS) if path is not None), None)
        return None if found is None else cls(found)

    def dom(self, page: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> str:
        """The page's elements as HTML, once its scripts have run.

        Args:
            page: a file.
            width: of the window.
            height: of the window.
            dark: whether a dark page is preferred.
        """
        return self._run(page, ["--dump-dom"], (width, height), dark=dark)

    def data(self, page: Path, **window: int | bool) -> dict[str, str]:
        """The ``data-`` attributes that scripts have set on the page's root and body; see ``dom``."""
        dom = self.dom(page, **window)
        tags = re.findall(r"<(?:html|body)\b[^>]*>", dom)
        return {name: unescape(value) for tag in tags for name, value in re.findall(r'data-([\w-]+)="([^"]*)"', tag)}

    def screenshot(self, page: Path, image: Path, *, width: int = 1200, height: int = 1600, dark: bool = False) -> None:
        """Write what the page looks like as a PNG; see ``dom``."""
        self._run(page, [f"--screenshot={image}"], (width, height), dark=dark)

    def seconds(self, page: Path) -> float:
        """Seconds from the start of the browser until the page's scripts have run, and the browser has ended."""
        start = time.perf_counter()
        self.dom(page)
        return time.perf_counter() - start

    def _run(self, page: Path, options: list[str], window: tuple[int, int], *, dark: bool) -> str:
        with tempfile.TemporaryDirectory(prefix="sparkdl-browser-", ignore_cleanup_errors=True) as profile:
            fixed = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
            size = f"--window-size={window[0]},{window[1]}"
            look = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
            clock, own = f"--virtual-time-budget={_VIRTUAL}", f"--user-data-dir={profile}"
            command = [self.program, *fixed, size, look, clock, own, *options, page.resolve().as_uri()]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LONGEST)
        if done.returncode:
            raise RuntimeError(f"{self.program} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout
