"""Pages whose blocks need a Spark session, page by page in one session; a whole page is one program."""

from __future__ import annotations

import pytest

from tests.docs import running
from tests.docs.digits import seeded
from tests.docs.test_blocks import FAST, PAGES, run_blocks

WITH_SPARK = [page for page in PAGES if page not in FAST]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("page", WITH_SPARK)
def test_a_page_with_spark(page, spark, tmp_path):
    seeded()
    running.run(page, run_blocks(page), tmp_path, spark)


def test_the_front_page_and_the_quickstart_are_among_them():
    assert {"README.md", "docs/quickstart.md", "docs/recovery.md", "docs/rounds.md"} <= set(WITH_SPARK)
