"""Whether a store refused what it was asked, or could only not do it now."""

import redis
from redis.exceptions import ClusterDownError, MasterDownError, OutOfMemoryError, ReadOnlyError, TryAgainError
from sqlalchemy.exc import DataError, DBAPIError, DisconnectionError, IntegrityError, TimeoutError

REDIS_AWAY = (redis.ConnectionError, redis.TimeoutError)
REDIS_REFUSES = (OutOfMemoryError, ReadOnlyError, MasterDownError, ClusterDownError, TryAgainError)
# Of those that have no class: its disk is full, its replicas are gone, it became a replica, it runs somebody's script.
REDIS_REFUSALS = ("MISCONF", "NOREPLICAS", "UNBLOCKED", "BUSY ")
PIPELINED = "of pipeline caused error: "  # what redis-py puts before Redis's own words
# No connection, no resources, shut down, a disk that fails, a standby.
POSTGRES_REFUSALS = ("08", "53", "57P", "58", "25006")


def is_away(error: BaseException) -> bool:
    """Whether the same statement may succeed later: Postgres is away, busy, read-only, or in the middle of a change.

    Its refusals are few (values that it cannot store, constraints); all else that it answers passes. Errors that are
    not the database's are not outages.
    """
    return isinstance(error, DBAPIError | DisconnectionError | TimeoutError) and not isinstance(
        error, DataError | IntegrityError
    )


def is_refusing_all(error: BaseException) -> bool:
    """Whether the store, Redis or Postgres, is not there or takes no writes at all: what it was asked is not to blame.

    Not so a key of another type, a value that it cannot store, or a statement that took too long.
    """
    if isinstance(error, redis.ResponseError) and not isinstance(error, REDIS_REFUSES):
        return str(error).rpartition(PIPELINED)[2].startswith(REDIS_REFUSALS)
    if isinstance(error, DBAPIError):
        state = getattr(error.orig, "sqlstate", None) or ""  # none: the driver's own error
        return error.connection_invalidated or state.startswith(POSTGRES_REFUSALS)
    return isinstance(error, REDIS_AWAY + REDIS_REFUSES)
