"""How long this process has been in contact with Postgres without a gap: whether it may judge others' leases."""

from collections.abc import Callable

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError


class ContactLost(Exception):
    """Postgres does not answer, or has ended the session that holds the lock."""


class Contact:
    """Every answer of Postgres counts, not only one a round: a long round of many answers has no gap.

    When Postgres was away, or this process slept, the workers may have been unable to renew, and would be declared
    lost while they live. So nobody is judged until contact was unbroken for one lease.
    """

    def __init__(self, *, lease_seconds: float, gap_seconds: float) -> None:
        """`gap_seconds`: a silence in which an outage long enough to cost somebody a lease could hide."""
        self._lease_seconds = lease_seconds
        self._gap_seconds = gap_seconds
        self._ask: Callable[[], float] = float  # replaced in `begin`
        self._unbroken_since: float | None = None  # as `_last`, of the first answer without a gap since
        self._last: float | None = None  # Postgres clock, Unix seconds

    def begin(self, now: float, ask: Callable[[], float] | None) -> None:
        """A round begins at `now`. `ask` reads the Postgres clock during it; without one the round takes no time."""
        self._ask = ask or (lambda: now)
        self._heard(now)

    def renew(self) -> None:
        """Ask once more; raises ContactLost."""
        try:
            self._heard(self._ask())
        except DBAPIError as error:
            raise ContactLost(str(error)) from error

    def lost(self) -> None:
        """Begin to count anew."""
        self._unbroken_since = None

    def is_unbroken(self) -> bool:
        """Whether there was no gap for one lease."""
        if self._last is None or self._unbroken_since is None:
            return False
        return self._last - self._unbroken_since >= self._lease_seconds

    def _heard(self, now: float) -> None:
        is_gap = self._last is None or not 0 <= now - self._last <= self._gap_seconds  # a jump back is one, too
        if is_gap or self._unbroken_since is None:
            self._unbroken_since = now
        self._last = now


def is_contact_lost(error: Exception) -> bool:
    """Whether Postgres was not there, as opposed to refusing one statement or taking too long over it."""
    if not isinstance(error, DBAPIError):
        return isinstance(error, ContactLost)
    if error.connection_invalidated:
        return True
    has_code = getattr(error.orig, "sqlstate", None) is not None  # the server said something
    return isinstance(error, OperationalError | InterfaceError) and not has_code
