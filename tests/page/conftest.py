"""A browser for the tests of the report page, or the reason why there is none."""

from __future__ import annotations

import os

import pytest

from benchmarks.events.browser import PROGRAMS, Browser


@pytest.fixture(scope="session")
def browser() -> Browser:
    """Skips where no browser is installed; where SPARKDL_REQUIRE_BROWSER is set it fails instead."""
    found = Browser.find()
    if found is None:
        say = pytest.fail if os.environ.get("SPARKDL_REQUIRE_BROWSER") else pytest.skip
        say(f"there is no {' and no '.join(PROGRAMS)}; conf/chromium.sh installs one, or says what to install")
    assert found is not None
    return found
