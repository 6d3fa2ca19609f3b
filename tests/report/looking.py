"""A page in a browser: sizes, colours and errors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

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
      ink: [...place.querySelectorAll(".xtick text")].map(text => style(text).fill)[0],
    };
  }
  document.body.dataset.probe = JSON.stringify({
    width: innerWidth, overflow: root.scrollWidth - root.clientWidth, charts: charts,
    ground: style(document.body).backgroundColor, text: style(document.body).color,
  });
}, 300));
</script>
</body>"""


def find_browser() -> Browser:
    """The browser; without one the test is skipped, or fails where SPARKDL_REQUIRE_BROWSER is set."""
    browser = Browser.find()
    if browser is None:
        say = pytest.fail if os.environ.get("SPARKDL_REQUIRE_BROWSER") else pytest.skip
        say(f"there is no {' and no '.join(PROGRAMS)}; conf/chromium.sh installs one or prints the packages")
    return browser


def look(browser: Browser, html: str, folder: Path, **window: int | bool) -> SimpleNamespace:
    """Open a page; ``window`` as in ``Browser.dom``.

    Returns ``data``, the attributes that the page's scripts set; ``trouble``, its errors; ``probe``, the result of
    ``_PROBE``; and ``charts``, its part about charts, by name.
    """
    page = folder / "probed.html"
    head, _, tail = html.rpartition("</body>")
    page.write_text(head + _PROBE + tail)
    data = browser.data(page, **window)
    probe = json.loads(data.pop("probe"))
    return SimpleNamespace(data=data, probe=probe, charts=probe["charts"], trouble=data.get("trouble"))


def contrast(*colours: str) -> float:
    """The contrast of two colours, as ``rgb(1, 2, 3)``: 1 (equal) to 21, as WCAG 2 defines it."""
    luminances = []
    for colour in colours:
        channels = [int(channel) / 255 for channel in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
        luminances.append(sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True)))
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)
