"""What a browser finds on a page: how large things came out, which colours they have, what went wrong."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.events.browser import PROGRAMS, Browser

_PROBE = """
<script>
addEventListener("load", () => setTimeout(() => {
  const root = document.documentElement, style = element => getComputedStyle(element);
  const charts = {};
  for (const place of document.querySelectorAll("figure > div")) {
    const plot = place.querySelector(".main-svg"), box = (plot || place).getBoundingClientRect();
    charts[place.id] = {
      drawn: plot !== null, width: box.width, height: box.height,
      marks: place.querySelectorAll(".scatterlayer :is(.js-line, .point), .bars .point, .heatmaplayer image").length,
      legend: [...place.querySelectorAll(".legendtext")].map(text => text.textContent),
      ticks: [...place.querySelectorAll(".ytick text")].map(text => text.textContent),
      ink: [...place.querySelectorAll(".xtick text")].map(text => style(text).fill)[0],
    };
  }
  document.body.dataset.probe = JSON.stringify({
    width: innerWidth, overflow: root.scrollWidth - root.clientWidth, charts: charts,
    ground: style(document.body).backgroundColor, text: style(document.body).color,
    title: document.title, heading: document.querySelector("h1").textContent,
    tags: document.querySelectorAll("h1 *").length,
  });
}, 300));
</script>
</body>"""

_COLOURS = """
<!doctype html><body><script>
const image = new Image();
image.onload = () => {
  const canvas = document.createElement("canvas"), found = {};
  canvas.width = image.width; canvas.height = image.height;
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const data = context.getImageData(0, 0, image.width, image.height).data;
  for (let at = 0; at < data.length; at += 4) {
    const key = data[at] + "," + data[at + 1] + "," + data[at + 2];
    found[key] = (found[key] || 0) + 1;
  }
  document.body.dataset.size = JSON.stringify([image.width, image.height]);
  document.body.dataset.colours = JSON.stringify(found);
};
image.src = "data:image/png;base64,%s";
</script></body>"""


def find_browser() -> Browser:
    """The browser; without one the test is skipped, or fails where SPARKDL_REQUIRE_BROWSER is set."""
    found = Browser.find()
    if found is None:
        say = pytest.fail if os.environ.get("SPARKDL_REQUIRE_BROWSER") else pytest.skip
        say(f"there is no {' and no '.join(PROGRAMS)}; conf/chromium.sh installs one, or says what to install")
    return found


@dataclass(frozen=True)
class Look:
    """What a browser has found.

    Attributes:
        data: the attributes that the page's own scripts have set.
        probe: what ``_PROBE`` has found.
    """

    data: dict[str, str]
    probe: dict[str, Any]

    @property
    def charts(self) -> dict[str, dict[str, Any]]:
        """What was found of each chart, by name."""
        found: dict[str, dict[str, Any]] = self.probe["charts"]
        return found

    @property
    def trouble(self) -> str | None:
        """What went wrong."""
        return self.data.get("trouble")


def look(browser: Browser, html: str, folder: Path, **window: int | bool) -> Look:
    """Open a page and see what is on it; ``window`` as in ``Browser.dom``."""
    page = folder / "probed.html"
    head, _, tail = html.rpartition("</body>")
    page.write_text(head + _PROBE + tail)
    data = browser.data(page, **window)
    return Look(data, json.loads(data.pop("probe")))


def colours(browser: Browser, image: Path) -> tuple[tuple[int, int], dict[tuple[int, ...], int]]:
    """The size of a PNG, and how many of its pixels have each colour."""
    page = image.with_suffix(".html")
    page.write_text(_COLOURS % base64.b64encode(image.read_bytes()).decode())
    data = browser.data(page)
    width, height = json.loads(data["size"])
    found = json.loads(data["colours"])
    return (width, height), {tuple(map(int, key.split(","))): count for key, count in found.items()}


def contrast(one: str, other: str) -> float:
    """How well two colours, as ``rgb(1, 2, 3)``, are told apart: 1 (not at all) to 21, as WCAG 2 defines it."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(each) / 255 for each in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
