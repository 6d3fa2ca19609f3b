"""The browser that tests of the page share."""

from __future__ import annotations

import pytest

from benchmarks.events.browser import Browser
from tests.report.looking import find_browser


@pytest.fixture(scope="session")
def browser() -> Browser:
    """Skips where no browser is installed; where SPARKDL_REQUIRE_BROWSER is set it fails instead."""
    return find_browser()
