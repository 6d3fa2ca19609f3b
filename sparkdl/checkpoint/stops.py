"""Rank 0's ear for the driver's word to save and stop, which it leaves in the checkpoints' directory."""

from __future__ import annotations

import logging
import threading

from sparkdl.checkpoint.store import Checkpoints

logger = logging.getLogger(__name__)

_LOOK = 1.0  # seconds between two looks: in an object store each is a request


class StopEar:
    """Looks for the word in a thread.

    Args:
        checkpoints: the run's.
        attempt: this attempt.
    """

    def __init__(self, checkpoints: Checkpoints, attempt: int) -> None:
        self.asked = threading.Event()
        self._checkpoints, self._attempt = checkpoints, attempt
        self._ended = threading.Event()
        threading.Thread(target=self._listen, name="sparkdl-stops", daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._ended.set()

    def _listen(self) -> None:
        while not self._ended.wait(_LOOK):
            try:
                if self._checkpoints.asked_to_stop(self._attempt):
                    self.asked.set()
                    return
            except OSError as error:  # the next look may succeed
                logger.warning("%s cannot be looked at: %s", self._checkpoints.folder.path, error)
