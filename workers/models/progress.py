"""How far a long conversion is, in the log."""

import logging

log = logging.getLogger(__name__)


class Progress:
    """Logs each whole ten percent."""

    def __init__(self, what: str, total_bytes: int) -> None:
        self._what, self._total_bytes = what, total_bytes
        self._done_bytes, self._tenths = 0, 0

    def add(self, num_bytes: int) -> None:
        """So many bytes more are done."""
        self._done_bytes += num_bytes
        tenths = self._done_bytes * 10 // self._total_bytes
        if tenths > self._tenths:
            self._tenths = tenths
            log.info("%s: %d %%", self._what, tenths * 10)
