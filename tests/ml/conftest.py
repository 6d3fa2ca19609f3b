"""The rows that fits on Spark share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ml.rows import ARRAYS
from tests.sessions import frame


@pytest.fixture(scope="session")
def data(spark: Any) -> Any:
    return frame(ARRAYS).cache()
