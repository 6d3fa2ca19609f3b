"""Says that a server of Spark Connect does not answer: Spark's client tries again in silence for ten minutes."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.connect.client.retries import RetryPolicy

logger = logging.getLogger(__name__)

_BRIEF = 2.0  # seconds of an outage that go unmentioned
_PAUSE = 30.0  # seconds between two warnings
_LONGEST_RETRY = 90.0  # seconds between two tries of one outage; Spark's client waits 60 at most


class OutageWarning(RetryPolicy):
    """A policy that retries nothing, and so leaves every error to the policies behind it."""

    def __init__(self) -> None:
        super().__init__()
        self._began = self._last = self._warned = -math.inf

    def can_retry(self, exception: BaseException) -> bool:
        """Warn, at most every 30 seconds, if the server has not answered for two; return False."""
        code = getattr(exception, "code", None)
        if code is not None and getattr(code(), "name", "") == "UNAVAILABLE":
            now = time.monotonic()
            if now - self._last > _LONGEST_RETRY:
                self._began = now
            self._last = now
            if now - self._began > _BRIEF and now - self._warned > _PAUSE:
                self._warned = now
                logger.warning(
                    "the server of Spark Connect has not answered for %.0f s. Spark's client tries again for about ten "
                    "minutes; then the fit fails.",
                    now - self._began,
                )
        return False


def announce_outages(spark: SparkSession) -> None:
    """Log warnings while the server of a session does not answer."""
    client: Any = spark.client
    client.set_retry_policies([OutageWarning(), *client.get_retry_policies()])
