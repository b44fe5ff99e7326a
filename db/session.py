"""Connections to the two stores. Every process makes its own, once, and passes them on."""

import select
from typing import Any

import psycopg
import redis
import redis.asyncio
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from db.settings import Settings

CONNECT_SECONDS = 5
STATEMENT_SECONDS = 30  # longer than any statement of ours; keeps a stuck one from holding its locks for ever
IDLE_SECONDS = 30  # between two statements of a transaction; the locks of a process that froze there are freed

# libpq: a peer that vanished is noticed in 5 + 3 * 2 seconds instead of two hours.
POSTGRES_OPTIONS = {
    "connect_timeout": CONNECT_SECONDS,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # milliseconds
    "options": f"-c statement_timeout={STATEMENT_SECONDS}s -c idle_in_transaction_session_timeout={IDLE_SECONDS}s"
    # Planning a statement over all partitions takes ten times as long as running it: it is done once per connection.
    " -c timezone=UTC -c plan_cache_mode=force_generic_plan",
    "prepare_threshold": 0,
    "application_name": "headrace",
}
ENGINE_OPTIONS: dict[str, Any] = {
    "pool_timeout": CONNECT_SECONDS,
    # What was used last is used next: its statements are planned already.
    "pool_use_lifo": True,
    "hide_parameters": True,  # an error's text is logged, and parameters are what clients wrote
    "connect_args": POSTGRES_OPTIONS,
}


def make_engine(settings: Settings, *, pool_size: int = 5) -> Engine:
    """A synchronous engine on psycopg 3: workers, the sweep and the command line."""
    engine = create_engine(
        settings.resolved_database_url, pool_size=pool_size, max_overflow=pool_size, **ENGINE_OPTIONS
    )
    event.listen(engine, "checkout", _check_taken)
    return engine


def make_async_engine(settings: Settings, *, pool_size: int = 20) -> AsyncEngine:
    """An asynchronous engine on psycopg 3: the API.

    It has no overflow, whose connections are closed after each use: making one costs more than any statement.
    """
    engine = create_async_engine(settings.resolved_database_url, pool_size=pool_size, max_overflow=0, **ENGINE_OPTIONS)
    event.listen(engine.sync_engine, "checkout", _check_taken)
    return engine


def _check_taken(_: DBAPIConnection, record: ConnectionPoolEntry, __: PoolProxiedConnection) -> None:
    """Replace what the pool holds of a server that went away: the end of the file is there to read.

    A ping would tell the same, at the price of a round trip for every transaction.
    """
    connection = record.driver_connection
    assert isinstance(connection, psycopg.Connection | psycopg.AsyncConnection)
    if connection.closed or _has_news(connection.pgconn.socket):
        raise InvalidatePoolError("the server closed the connection")


def _has_news(socket: int) -> bool:
    """Whether there is something to read. A connection that nobody uses has nothing."""
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))


def make_redis(settings: Settings) -> redis.Redis:
    """A synchronous client that answers bytes. A call that finds the server away raises within seconds."""
    return redis.Redis.from_url(
        settings.resolved_redis_url,
        socket_timeout=CONNECT_SECONDS,
        socket_connect_timeout=CONNECT_SECONDS,
        health_check_interval=CONNECT_SECONDS,
    )


def make_async_redis(settings: Settings) -> redis.asyncio.Redis:
    """The same for the API's event loop."""
    return redis.asyncio.Redis.from_url(
        settings.resolved_redis_url,
        socket_timeout=CONNECT_SECONDS,
        socket_connect_timeout=CONNECT_SECONDS,
        health_check_interval=CONNECT_SECONDS,
    )
