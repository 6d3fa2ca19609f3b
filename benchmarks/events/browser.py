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
_CLOCK = "--virtual-time-budget=5000"  # milliseconds that a page's own clock goes on, as fast as it can


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
        return self._run(page, ["--dump-dom", _CLOCK], (width, height), dark=dark)

    def data(self, page: Path, **window: int | bool) -> dict[str, str]:
        """The ``data-`` attributes that scripts have set on the page's root and body; see ``dom``."""
        dom = self.dom(page, **window)
        tags = re.findall(r"<(?:html|body)\b[^>]*>", dom)
        return {name: unescape(value) for tag in tags for name, value in re.findall(r'data-([\w-]+)="([^"]*)"', tag)}

    def screenshot(self, page: Path, image: Path, *, width: int = 1200, height: int = 1600, dark: bool = False) -> None:
        """Write what the page looks like as a PNG; see ``dom``."""
        self._run(page, [f"--screenshot={image}", _CLOCK], (width, height), dark=dark)

    def seconds(self, page: Path) -> float:
        """Seconds from the start of the browser until the page says, by ``data-at``, that it is drawn.

        Its clock is the real one, and the page has to be drawn by the time that it is loaded.
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
