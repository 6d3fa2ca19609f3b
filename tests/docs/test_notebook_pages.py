"""Notebooks on the site, in a browser: Sphinx builds the pages of some guides, and of the notebooks they link."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from tests.docs.pages import ROOT
from tests.notebooks.executing import kinds
from tests.report.looking import find_browser

GUIDES = {"docs/images.md": "images", "docs/text.md": "text", "docs/sizing.md": "scaling"}
PHONE = 500  # pixels: no browser's window is narrower
_PROBE = """
<script>
addEventListener("load", () => {
  const pictures = [...document.querySelectorAll("article img")].map(picture => {
    const box = picture.getBoundingClientRect();
    return {natural: picture.naturalWidth, left: box.left, right: box.right, height: box.height,
            visible: picture.checkVisibility({visibilityProperty: true, opacityProperty: true})};
  });
  document.body.dataset.probe = JSON.stringify({pictures: pictures, width: document.documentElement.clientWidth});
});
</script>
</body>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of a site of the guides alone: the whole one takes a minute."""
    build = pytest.importorskip("sphinx.cmd.build").build_main
    built, trees = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("trees")
    settings = {"include_patterns": ",".join(GUIDES), "root_doc": next(iter(GUIDES)).removesuffix(".md")}
    changed = [option for name, value in settings.items() for option in ("-D", f"{name}={value}")]
    # Links to pages outside of this site are warnings here.
    options = ["-Q", "-c", str(ROOT / "docs"), "-d", str(trees), *changed]
    assert build([*options, str(ROOT), str(built)]) == 0
    return built


def probed(browser, page: Path, **window: int) -> SimpleNamespace:
    """The pictures of a page, and its width in pixels."""
    copy = page.with_name(f"probed-{page.name}")
    head, _, tail = page.read_text(encoding="utf-8").rpartition("</body>")
    copy.write_text(head + _PROBE + tail, encoding="utf-8")
    return SimpleNamespace(**json.loads(browser.data(copy, **window)["probe"]))


@pytest.mark.slow
@pytest.mark.parametrize("window", [{}, {"width": PHONE}], ids=["desktop", "phone"])
@pytest.mark.parametrize("notebook", GUIDES.values())
def test_pictures_of_a_notebook_are_loaded_and_visible(site, notebook, window):
    browser, file = find_browser(), f"examples/{notebook}.ipynb"
    cells = nbformat.read(ROOT / file, as_version=4).cells
    page = probed(browser, site / "source" / f"{file}.html", **window)
    assert len(page.pictures) >= sum("picture" in kinds(cell) for cell in cells) > 0
    for picture in page.pictures:
        assert picture["natural"] > 100
        assert picture["visible"]
        assert picture["height"] > 50
        assert 0 <= picture["left"] < picture["right"] <= page.width
