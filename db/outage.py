"""Whether Postgres refused what it was asked, or could only not do it now."""

from sqlalchemy.exc import DataError, DBAPIError, DisconnectionError, IntegrityError, TimeoutError


def is_away(error: BaseException) -> bool:
    """Whether the same statement may succeed later: the server is away, busy, read-only, or in the middle of a change.

    Its refusals are few (values that it cannot store, constraints); all else that it answers passes. Errors that are
    not the database's are not outages.
    """
    return isinstance(error, DBAPIError | DisconnectionError | TimeoutError) and not isinstance(
        error, DataError | IntegrityError
    )
