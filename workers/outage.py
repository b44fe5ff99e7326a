"""Says once that a store is away and once that it is back, however often it was tried in between."""

import logging


class Outage:
    """One thread's contact with one store. Used by that thread only."""

    def __init__(self, log: logging.Logger, meaning: str) -> None:
        """`meaning` says what waits while it lasts."""
        self._log = log
        self._meaning = meaning
        self._is_on = False

    def seen(self, error: Exception) -> None:
        """A try has failed."""
        if not self._is_on:
            self._is_on = True
            self._log.warning("%s: %s", self._meaning, str(error).partition("\n")[0])

    def over(self) -> None:
        """A try has succeeded."""
        if self._is_on:
            self._is_on = False
            self._log.info("no longer: %s", self._meaning)
